//! Requests to all nodes outside of an acquisition: for the holder of a lock, to release it by force, and for what the
//! servers report about themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use leasehold_protocol::{
    failure::Failure,
    forced::ForcedRelease,
    holder::Holder,
    key::{self, Key},
    message::{Looked, Page, Reply, Request, Route, Shard},
    node_status::NodeStatus,
    plurality::Plurality,
    tally::{Nodes, majority},
    votes::NodeAnswer,
};

use super::{FanOut, Member, PendingReply, Quorum, vote_of};
use crate::{
    node::{Answer, ShardInfo},
    survey::{Inquiry, ServerSaid},
};

impl Quorum {
    fn ask_all<T>(&self, route: Route, request: &Request, limit: Duration) -> FanOut<PendingReply<T>>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        self.members().map(|(at, member)| (at, member.ask(route, request.clone(), limit))).collect()
    }

    /// Awaits every answer, the slowest too.
    async fn everybody<T, A>(&self, mut answers: FanOut<A>) -> Vec<Result<T, Failure>>
    where
        A: Future<Output = Result<T, Failure>> + Unpin,
    {
        let mut said = self.nobody_yet();
        while !answers.is_empty() {
            let (node, answer) = answers.next().await;
            said.splice(node..=node, [answer]);
        }
        said
    }

    /// Finds the holder of a lock: the one that has a majority of the nodes or, as far as they answer, may have one.
    /// Also reports whether that is certain.
    pub(crate) async fn look(&self, key: &Key, route: Route, limit: Duration) -> Result<Seen, Failure> {
        let mut answers = self.ask_all::<Looked>(route, &Request::Holder(key.clone()), limit);
        let (mut said, mut left, mut is_tracked) = (self.nobody_yet(), self.len(), true);
        while left > 0 {
            let (node, answer) = answers.next().await;
            is_tracked &= answer.as_ref().map_or(true, |looked| looked.tracked);
            said.splice(node..=node, [answer.map(|looked| looked.holder)]);
            left -= 1;
            let heard = said.iter().filter_map(|said| said.as_ref().ok());
            let (held, free): (Vec<_>, Vec<_>) = heard.cloned().partition(Option::is_some);
            let held: Vec<Holder> = held.into_iter().flatten().collect();
            let silent = self.len() - held.len() - free.len();
            let is_over = left == 0 && silent <= self.len() - self.majority();
            match Plurality::largest(&held, self.majority()) {
                Some(Plurality { holder, nodes })
                    if nodes >= self.majority() && holder.fence().is_some()
                        || is_over && nodes + silent >= self.majority() =>
                {
                    let remaining = self.lasts(&held, &holder);
                    let holder = Some(holder.lasting(remaining));
                    return Ok(Seen { holder, is_certain: nodes >= self.majority(), is_tracked });
                }
                _ if is_over || free.len() >= self.majority() => {
                    return Ok(Seen { holder: None, is_certain: true, is_tracked });
                }
                _ => {}
            }
        }
        Err(self.failure(&said, |_| NodeAnswer::Granted))
    }

    /// How long a majority of a holder's keys live, or all known ones if they are fewer.
    fn lasts(&self, held: &[Holder], holder: &Holder) -> Option<Duration> {
        let keys = held.iter().filter(|other| other.is_same(holder));
        let mut remaining: Vec<Duration> = keys.map(|key| key.remaining().unwrap_or(Duration::MAX)).collect();
        remaining.sort_by(|one, other| other.cmp(one));
        let last = remaining.iter().take(self.majority()).next_back();
        last.copied().filter(|&remaining| remaining != Duration::MAX)
    }

    /// The held locks on any node that match a pattern; an error unless a majority answers. If a part of a cluster does
    /// not answer, the result says why its locks are missing.
    pub(crate) async fn held(&self, pattern: &str, limit: Duration) -> Result<Held, Failure> {
        let (route, pattern): (_, Arc<str>) = (self.route(), pattern.into());
        let read = |(at, member): (usize, &Arc<Member>)| (at, read(member.clone(), route, pattern.clone(), limit));
        let said = self.everybody(self.members().map(read).collect()).await;
        if said.iter().filter(|said| said.is_ok()).count() < self.majority() {
            return Err(self.failure(&said, |_| NodeAnswer::Granted));
        }
        let mut all = Held::default();
        for Held { locks, missing } in said.into_iter().flatten() {
            all.locks.extend(locks);
            all.missing = all.missing.or(missing);
        }
        Ok(all)
    }

    /// Releases the lock by force on every node, on behalf of `by`. Returns the nodes that had it.
    pub(crate) async fn force_release(
        &self,
        key: Key,
        by: Arc<ForcedRelease>,
        limit: Duration,
    ) -> Result<Nodes, Failure> {
        let request = Request::ForceRelease { key, by };
        let said = self.everybody(self.ask_all::<bool>(self.route(), &request, limit)).await;
        if said.iter().filter(|said| said.is_ok()).count() < self.majority() {
            return Err(self.failure(&said, |_| NodeAnswer::Granted));
        }
        Ok(said.iter().enumerate().filter(|(_, said)| matches!(said, Ok(true))).map(|(at, _)| at).collect())
    }

    /// The report of each server about itself, or why it does not answer. An unreachable shard hides no other.
    pub(crate) async fn survey(&self, inquiry: &Inquiry) -> Vec<(NodeStatus, Result<ServerSaid, Failure>)> {
        let members = self.members().map(|(_, member)| member);
        let all = members.flat_map(|member| member.shards().into_iter().map(move |info| (member, info)));
        let shards: Vec<(&Arc<Member>, ShardInfo)> = all.collect();
        let said = join_all(shards.iter().map(|(member, info)| member.survey(info.shard, inquiry))).await;
        shards.iter().zip(said).map(|((member, info), said)| (member.status(info), said)).collect()
    }

    /// Whether a majority could grant a lock with this prefix now.
    pub(crate) async fn health(&self, prefix: &str, limit: Duration) -> Result<(), Failure> {
        let sharded = self.only().and_then(|only| Some((only, key_of_each_shard(only, prefix)?)));
        if let Some((only, keys)) = sharded {
            return self.health_of_shards(only, keys, limit).await;
        }
        let rehearsal = Request::Rehearse { key: key::of_nobody(prefix), restart_delay: self.restart_delay() };
        let said = self.everybody(self.ask_all::<Option<Duration>>(self.route(), &rehearsal, limit)).await;
        if let ([Ok(Some(left))], Some(only)) = (&*said, self.only()) {
            return Err(Failure::recovering(only.address(), *left));
        }
        if said.iter().filter(|said| matches!(said, Ok(None))).count() < self.majority() {
            let vote = |left: &Option<Duration>| {
                left.map_or(NodeAnswer::Granted, |remaining| NodeAnswer::Recovering { remaining })
            };
            return Err(self.failure(&said, vote));
        }
        Ok(())
    }

    /// Whether a majority of a cluster's shards could grant a lock now: one shard's failover must not turn a whole
    /// fleet away.
    async fn health_of_shards(
        &self,
        member: &Arc<Member>,
        keys: BTreeMap<Shard, Key>,
        limit: Duration,
    ) -> Result<(), Failure> {
        let ask = |key: Key| {
            let rehearsal = Request::Rehearse { key, restart_delay: Duration::ZERO };
            member.ask::<Option<Duration>>(self.route(), rehearsal, limit)
        };
        let (shards, infos): (Vec<Shard>, _) = (keys.keys().copied().collect(), member.shards());
        let mut asking: FanOut<_> = keys.into_values().map(ask).enumerate().collect();
        let (mut said, mut well) = (Vec::new(), 0);
        while !asking.is_empty() {
            let (at, answer) = asking.next().await;
            well += usize::from(answer.is_ok());
            let info = infos.iter().find(|info| shards.get(at) == Some(&info.shard));
            let address = info.map_or_else(|| member.address().to_owned(), |info| info.address.clone());
            said.push((address, vote_of(&answer, |_| NodeAnswer::Granted)));
        }
        if well >= majority(shards.len()) { Ok(()) } else { Err(Failure::of_nodes(said)) }
    }

    /// Declares dead the connections to the servers of a key.
    pub(crate) fn reconnect(&self, nodes: Nodes, key: &Key) {
        for member in nodes.iter().filter_map(|at| self.member(at)) {
            if let Some(links) = member.links() {
                links.reconnect(Route::Keeper, member.shard_of(key));
            }
        }
    }

    /// Closes the connections. Ends within `limit`.
    pub(crate) async fn close(&self, limit: Duration) {
        join_all(self.members().filter_map(|(_, member)| Some(member.node()?.close(limit)))).await;
    }

    fn nobody_yet<T>(&self) -> Vec<Result<T, Failure>> {
        (0..self.len()).map(|_| Err(Failure::unknown("it has not answered yet"))).collect()
    }
}

/// An unused key on each shard of a node that has several, as far as there is one with this prefix. With a hash tag,
/// all keys are on one shard.
fn key_of_each_shard(member: &Member, prefix: &str) -> Option<BTreeMap<Shard, Key>> {
    const TRIES: u32 = 1_000;
    let shards = member.shards().len();
    let mut keys = BTreeMap::new();
    for number in 0..TRIES {
        if keys.len() == shards || shards < 2 {
            break;
        }
        let key = key::of_nobody(&format!("{prefix}{number}"));
        let shard = member.shard_of(&key);
        // In a cluster, `FIRST` means that no server has that slot.
        if shard != Shard::FIRST {
            keys.entry(shard).or_insert(key);
        }
    }
    (!keys.is_empty()).then_some(keys)
}

/// The holder of a lock, as [`Quorum::look`] has found it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) holder: Option<Holder>,
    /// Whether a majority confirms it.
    pub(crate) is_certain: bool,
    /// Whether the nodes that answered notify us of the next change.
    pub(crate) is_tracked: bool,
}

/// Locks that are held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) locks: BTreeSet<String>,
    /// Why the locks of some primaries of a cluster are missing.
    pub(crate) missing: Option<Failure>,
}

/// Reads every page of a node's locks, each within the limit. An error if none of its shards answers.
fn read(member: Arc<Member>, route: Route, pattern: Arc<str>, limit: Duration) -> Answer<Held> {
    Box::pin(async move {
        let shards = member.shards();
        let read = |info: &ShardInfo| read_shard(member.clone(), info.shard, route, pattern.clone(), limit);
        let mut asking: FanOut<_> = shards.iter().map(read).enumerate().collect();
        let (mut locks, mut silent) = (BTreeSet::new(), Vec::new());
        while !asking.is_empty() {
            match asking.next().await {
                (_, Ok(some)) => locks.extend(some),
                (at, Err(failure)) => silent.push((at, failure)),
            }
        }
        match &*silent {
            _ if shards.is_empty() => Err(Failure::unavailable(format!("{} has no primary", member.address()))),
            [] => Ok(Held { locks, missing: None }),
            [(_, only)] if shards.len() == 1 => Err(only.clone()),
            some if some.len() == shards.len() => Err(untold(&shards, silent)),
            _ => Ok(Held { locks, missing: Some(untold(&shards, silent)) }),
        }
    })
}

/// The failure of primaries of a cluster that have not reported their locks.
fn untold(shards: &[ShardInfo], mut silent: Vec<(usize, Failure)>) -> Failure {
    silent.sort_by_key(|(at, _)| *at);
    let address = |at: usize| shards.get(at).map_or("", |info| &*info.address);
    let why: Vec<String> = silent.iter().map(|(at, failure)| format!("{}: {failure}", address(*at))).collect();
    let text = format!("the locks of {} of {} primaries are missing: {}", silent.len(), shards.len(), why.join("; "));
    let is_refusal = silent.iter().all(|(_, failure)| failure.is_refusal());
    if is_refusal { Failure::refused(text) } else { Failure::unavailable(text) }
}

fn read_shard(
    member: Arc<Member>,
    shard: Shard,
    route: Route,
    pattern: Arc<str>,
    limit: Duration,
) -> Answer<Vec<String>> {
    Box::pin(async move {
        let (mut locks, mut cursor) = (Vec::new(), 0);
        loop {
            let request = Request::Held { shard, pattern: pattern.clone(), cursor };
            let (next, page): Page = member.ask(route, request, limit).await?;
            locks.extend(page);
            if next == 0 {
                return Ok(locks);
            }
            cursor = next;
        }
    })
}
