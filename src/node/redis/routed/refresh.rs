//! Asks cluster servers which of them has which slot, or Sentinels which server is the primary. Merges the answers.

use std::{
    collections::BTreeSet,
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    future::try_join_all,
    stream::{FuturesUnordered, StreamExt},
};
use leasehold_protocol::{
    doubling::Doubling,
    failure::Failure,
    hearsay::{self, Hearsay},
    place::{Place, Shard},
    slot::Keys,
    topology::{Changes, TakenOver, View},
};

use super::{
    Cluster, leave_idle,
    sentinel::{NoView, Sentinels},
    views,
};
use crate::{
    error::Error,
    foreign::{self, Event},
    metrics::NodeCount,
    node::redis::{
        transport::{Address, Endpoint, mistake_of, question, unreachable},
        wire::{Error as WireError, ErrorKind as WireKind, Value, is_answer, words},
    },
};

/// The primaries that are asked in one round, and one server besides.
const ASKED: usize = 4;

/// The most views that are remembered as bringing nothing new.
const MOST_SETTLED: usize = 32;

/// How long the other seeds are waited for once one has answered.
const OTHERS: Duration = Duration::from_millis(200);

const NO_SLOTS: &str = "is in a cluster in which no server has a slot, or none tells where it is";

/// The questions for a view.
const VIEW: [&str; 2] = ["NODES", "SLOTS"];

/// The pauses between tries to reach a seed.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A server to ask.
#[derive(Clone)]
pub(super) enum Source {
    /// A primary, on its existing connections.
    Primary(Shard),
    /// Any server, on a connection that is made for it.
    Other(Box<Endpoint>),
}

impl Source {
    fn primary(&self) -> Option<Shard> {
        match self {
            Self::Primary(shard) => Some(*shard),
            Self::Other(_) => None,
        }
    }
}

type Coming<'a, T> = Pin<Box<dyn Future<Output = Result<T, NoView>> + Send + 'a>>;

/// A question under way.
pub(super) struct Asking<'a>(&'a Cluster, String);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.lock().remove(&self.1);
    }
}

impl Cluster {
    /// Merges the views of all seeds that answer, or what follows from the reports of all Sentinels that do. The first
    /// one to answer may be out of date, or wrong.
    pub(super) async fn first_view(&self) -> Result<(), Error> {
        if let Some(sentinels) = &self.sentinels {
            return Box::pin(self.first_words(sentinels)).await;
        }
        let ask = |seed| Box::pin(self.first_view_of(seed)) as Coming<'_, _>;
        let (views, said) = self.first_answers(ask).await;
        if views.is_empty() {
            return Err(none_of(said, false));
        }
        let views = hearsay::sort(views, |(_, view)| view).map_err(|[(one, _), (other, _)]| {
            Error::config(format!("{one} and {other} are of two clusters: name servers of one"))
        })?;
        let mut hearsay = Hearsay::default();
        for (_, view) in views {
            hearsay.heard(None, Some(view));
        }
        self.go_on(&mut hearsay);
        Ok(())
    }

    async fn first_view_of(&self, seed: &Endpoint) -> Result<(String, View), NoView> {
        let (target, view) = (seed.target.to_string(), self.view_afresh(seed).await?);
        if view.primaries.iter().all(|primary| primary.place.is_none() || primary.slots.is_empty()) {
            return Err(NoView::Told(Error::unavailable(format!("{target} {NO_SLOTS}"))));
        }
        Ok((target, view))
    }

    /// The answers of all seeds that arrive within [`OTHERS`] of each other, and the errors of the others.
    async fn first_answers<'a, T>(&'a self, ask: impl Fn(&'a Endpoint) -> Coming<'a, T>) -> (Vec<T>, Vec<Error>) {
        let mut asking: FuturesUnordered<_> =
            self.seeds.iter().map(|seed| self.answer_of(seed, || ask(seed))).collect();
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        while !asking.is_empty() {
            let others = async { if answers.is_empty() { pending().await } else { self.host.sleep(OTHERS).await } };
            match tokio::select! { biased; () = others => break, next = asking.next() => next } {
                Some(Ok(answer)) => answers.push(answer),
                Some(Err(error)) => failed.push(error),
                None => break,
            }
        }
        (answers, failed)
    }

    async fn first_words(&self, sentinels: &Sentinels) -> Result<(), Error> {
        let until = self.now() + self.pattern.limits.connect;
        let mut pauses = Doubling::from(FIRST_PAUSE);
        loop {
            let (words, mut failed) = self.first_answers(|seed| Box::pin(self.said_by(sentinels, seed))).await;
            let (mut may_change, mut refused) = (false, Vec::new());
            for said in sentinels.sort(self.now(), words) {
                let primary = said.1.primary.clone();
                if refused.contains(&primary) {
                    continue;
                }
                match self.judge(sentinels, said).await {
                    Ok(view) => drop(self.topology.write().merge(&view, self.now())),
                    Err(error) => {
                        refused.push(primary);
                        let NoView::Told(error) = error else { continue };
                        may_change |= matches!(error, Error::Unavailable(_));
                        failed.push(error);
                    }
                }
            }
            let pause = pauses.next(LONGEST_PAUSE);
            if !self.topology.read().servers().is_empty() {
                return Ok(());
            } else if !may_change || self.now() + pause >= until {
                return Err(none_of(failed, true));
            }
            self.host.sleep(pause).await;
        }
    }

    /// Asks a seed until it answers, for as long as a connection may take.
    async fn answer_of<'a, T>(&self, seed: &Endpoint, ask: impl Fn() -> Coming<'a, T>) -> Result<T, Error> {
        let until = seed.now() + seed.limits.connect;
        let (mut pauses, mut last) = (Doubling::from(FIRST_PAUSE), None);
        loop {
            let answer = tokio::select! {
                biased;
                answer = ask() => answer,
                () = self.host.sleep(until.since(seed.now())) => {
                    return Err(last.unwrap_or_else(|| unreachable(seed, None)));
                }
            };
            last = Some(match answer {
                Ok(answer) => return Ok(answer),
                Err(NoView::Failed(error)) => match mistake_of(seed, &error) {
                    Some(mistake) => return Err(mistake),
                    None => unreachable(seed, Some(&error)),
                },
                Err(NoView::Told(error @ Error::Unavailable(_))) => error,
                Err(NoView::Told(error)) => return Err(error),
            });
            self.host.sleep(pauses.next(LONGEST_PAUSE).min(until.since(seed.now()))).await;
        }
    }

    /// The cluster as this server sees it; `None` if the server is being asked already.
    async fn view(&self, source: &Source) -> Option<Result<View, NoView>> {
        match source {
            Source::Primary(shard) => {
                let (server, _) = self.known(*shard)?;
                let _asking = self.ask_once(server.address.clone())?;
                let (host, limit) = (self.topology.read().place(*shard)?.host.clone(), self.pattern.limits.command);
                let asking = VIEW.map(|what| server.keeper.command("CLUSTER", vec![what.into()], limit));
                let answers = try_join_all(asking).await.map_err(NoView::from);
                Some(answers.and_then(|answers| read(&answers, &server.address, &host)))
            }
            Source::Other(endpoint) => {
                let _asking = self.ask_once(endpoint.target.to_string())?;
                Some(self.view_afresh(endpoint).await)
            }
        }
    }

    pub(super) fn ask_once(&self, question: String) -> Option<Asking<'_>> {
        self.asking.lock().insert(question.clone()).then(|| Asking(self, question))
    }

    async fn view_afresh(&self, server: &Endpoint) -> Result<View, NoView> {
        if let Some(sentinels) = &self.sentinels {
            let said = Box::pin(self.said_by(sentinels, server)).await?;
            return Box::pin(self.judge(sentinels, said)).await;
        }
        let Address::Tcp { host, .. } = &server.target.address else {
            return Err(WireError::new(WireKind::Other, "a cluster has no sockets").into());
        };
        let limit = server.limits.command;
        // Boxed: it is large, and rarely needed.
        let asking = Box::pin(question::ask(self.host.clone(), server, &self.left_out, async |link| {
            try_join_all(VIEW.map(|what| link.command("CLUSTER", vec![what.into()], limit))).await
        }));
        read(&asking.await?, &server.target.to_string(), host)
    }

    /// A server's answer, on a connection that is made for it.
    pub(super) async fn question(&self, of: &Endpoint, what: &'static str, more: &[&str]) -> Result<Value, WireError> {
        let asking = question::ask(self.host.clone(), of, &self.left_out, async |link| {
            let arguments: Vec<Value> = more.iter().map(|argument| (*argument).into()).collect();
            link.command(what, arguments, of.limits.command).await
        });
        // Boxed: it is large, and rarely needed.
        Box::pin(asking).await
    }

    /// Asks some servers in parallel, others in each round.
    pub(super) async fn look(self: Arc<Self>, round: usize) {
        self.look_at(self.sources(round), round).await;
    }

    /// Asks these servers, and merges what is believed of their answers as they arrive. If one server alone reports
    /// that a primary has lost something, that primary is asked too, and so are others.
    pub(super) async fn look_at(&self, sources: Vec<Source>, round: usize) {
        // Each server is asked by one round at a time, so one that is unreachable does not keep a round from the
        // others. Two connections may have to be made.
        let limit = (self.pattern.limits.connect + self.pattern.limits.command) * 2;
        let ask = async |source| {
            let answer = tokio::time::timeout(limit, self.view(&source)).await.ok().flatten();
            (source, answer)
        };
        let (mut hearsay, mut asking, mut more) = (Hearsay::default(), FuturesUnordered::new(), sources);
        let mut has_asked_others = false;
        loop {
            for source in more.drain(..) {
                hearsay.ask(source.primary());
                asking.push(ask(source));
            }
            let Some((source, answer)) = asking.next().await else { return };
            match self.view_in(&source, answer, &mut hearsay) {
                Some(view) if self.sentinels.is_some() => self.take_in(&view),
                view => hearsay.heard(source.primary(), view.filter(|view| !self.settled.lock().contains(view))),
            }
            self.silent().into_iter().for_each(|primary| hearsay.is_silent(primary));
            self.go_on(&mut hearsay);
            let (losers, gainers) = hearsay.contested(&self.topology.read(), self.now());
            // Merging takes a while, and answers may come together: leases are due in between.
            tokio::task::yield_now().await;
            more.extend(gainers.iter().map(|place| Source::Other(Box::new(self.endpoint(place)))));
            if !losers.is_empty() && !has_asked_others {
                has_asked_others = true;
                more.extend(losers.into_iter().map(Source::Primary).chain(self.sources(round)));
            }
        }
    }

    /// The view in an answer, if there is one.
    fn view_in(&self, source: &Source, answer: Option<Result<View, NoView>>, hearsay: &mut Hearsay) -> Option<View> {
        let error = match answer? {
            Ok(view) => return Some(view),
            Err(error) => error,
        };
        if let (Some(primary), NoView::Failed(error)) = (source.primary(), &error) {
            if !is_answer(error) {
                hearsay.is_silent(primary);
            }
        }
        foreign::tell_debug(|| Event::Connection {
            node: match source {
                Source::Primary(shard) => {
                    self.topology.read().place(*shard).map(ToString::to_string).unwrap_or_default()
                }
                Source::Other(endpoint) => endpoint.target.to_string(),
            },
            error: match error {
                NoView::Failed(error) => words(&error).into(),
                NoView::Told(error) => error.to_string(),
            },
        });
        None
    }

    /// The primaries that leave requests unanswered, or report that they do not serve.
    fn silent(&self) -> Vec<Shard> {
        let now = self.now();
        let servers = self.servers.lock();
        let silent = servers.iter().filter(|(_, ((_, pulse), _))| pulse.is_silent(now)).map(|(shard, _)| *shard);
        silent.chain(self.topology.read().down()).collect()
    }

    /// Merges what is believed by now.
    fn go_on(&self, hearsay: &mut Hearsay) {
        let next = |hearsay: &mut Hearsay| hearsay.believed(&self.topology.read(), self.now());
        while let Some(view) = next(hearsay) {
            self.take_in(&view);
        }
    }

    fn take_in(&self, view: &View) {
        let changes = self.merge(view);
        self.have_changed(&changes);
    }

    fn merge(&self, view: &View) -> Changes {
        let (mut topology, mut settled) = (self.topology.write(), self.settled.lock());
        let before = topology.clone();
        let changes = topology.merge(view, self.now());
        if *topology != before {
            settled.clear();
        } else if !topology.is_foreign() && settled.len() < MOST_SETTLED {
            // A foreign view counts once all views have been foreign for a while.
            settled.push(view.clone());
        }
        changes
    }

    /// The servers to ask in this round: primaries on their existing connections, and a replica or a seed.
    fn sources(&self, round: usize) -> Vec<Source> {
        if let Some(sentinels) = &self.sentinels {
            return sentinels.from(&self.seeds, round).into_iter().map(|one| Source::Other(Box::new(one))).collect();
        }
        let topology = self.topology.read();
        let primaries = topology.servers();
        let replicas: BTreeSet<Place> =
            primaries.iter().flat_map(|server| topology.replicas(*server)).cloned().collect();
        drop(topology);
        let others: Vec<Endpoint> =
            replicas.iter().map(|place| self.endpoint(place)).chain(self.seeds.iter().cloned()).collect();
        let some =
            primaries.iter().cycle().skip(round * ASKED % primaries.len().max(1)).take(ASKED.min(primaries.len()));
        let other = others.get(round % others.len().max(1));
        some.map(|shard| Source::Primary(*shard))
            .chain(other.cloned().map(|other| Source::Other(Box::new(other))))
            .collect()
    }

    /// Acts on a changed topology: holders and waiters that another server has served ask again.
    pub(super) fn have_changed(&self, changes: &Changes) {
        self.take_over(changes);
        self.have_missed(changes);
        for TakenOver { before, now, epoch, slots, .. } in &changes.taken_over {
            let (node, before, slots) = (now.to_string(), before.to_string(), slots.len());
            foreign::tell(Event::TakenOver { node, before, slots, epoch: *epoch });
        }
        if changes.is_another {
            foreign::tell(Event::AnotherCluster { node: self.address.clone() });
        }
        if !changes.slots.is_empty() {
            foreign::tell_debug(|| Event::Topology {
                node: self.address.clone(),
                slots: changes.slots.len(),
                primaries: self.topology.read().servers().len(),
            });
        }
    }

    /// Has the holders and waiters of these slots ask again.
    pub(super) fn have_missed(&self, changes: &Changes) {
        let mut slots = changes.slots.clone();
        for shard in &changes.elsewhere {
            slots.extend(&self.topology.read().slots(*shard));
        }
        if slots.is_empty() {
            return;
        }
        if let Some(listener) = self.listener() {
            listener.missed(&Keys::Of(slots));
        }
    }

    /// Acts on a changed topology: requests that wait for it continue, and servers that have no slot any more, or have
    /// moved, are left.
    pub(super) fn take_over(&self, changes: &Changes) {
        if *changes == Changes::default() {
            return;
        }
        let left: Vec<_> = {
            let mut servers = self.servers.lock();
            changes.retired.iter().chain(&changes.elsewhere).filter_map(|left| servers.remove(left)).collect()
        };
        for ((connections, _), _) in left {
            connections.retire();
        }
        let failovers = changes.taken_over.iter().filter(|taken_over| taken_over.is_new);
        failovers.for_each(|_| self.metrics.count(NodeCount::Failover));
        if let Some(listener) = self.listener() {
            let taken_over = changes.taken_over.iter().map(|taken_over| taken_over.slots.clone());
            taken_over.for_each(|slots| listener.taken_over(&Keys::Of(slots)));
        }
        // Some guests are primaries now.
        self.connect_to_all();
        leave_idle(&mut self.guests.lock());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// Reads the answers to the questions of [`VIEW`].
fn read(answers: &[Value], server: &str, host: &str) -> Result<View, NoView> {
    let text = || format!("{server}: its CLUSTER NODES and CLUSTER SLOTS cannot be read, or do not belong together");
    let view = if let [nodes, slots] = answers { views::view(slots, nodes, host) } else { None };
    view.ok_or_else(|| NoView::Told(Error::unavailable(text())))
}

/// The error if no seed is of use: each reply, and a common one once. Trying again is pointless only if all of them
/// refuse us.
fn none_of(mut said: Vec<Error>, of_sentinels: bool) -> Error {
    let mut texts = BTreeSet::new();
    said.retain(|error| texts.insert(error.to_string()));
    let advice = if texts.iter().any(|text| text.ends_with(NO_SLOTS)) {
        ": make the cluster with redis-cli --cluster create, or see to cluster-announce-ip and cluster-announce-hostname"
    } else {
        ""
    };
    if said.len() == 1 && advice.is_empty() {
        if let Some(only) = said.pop() {
            return only;
        }
    }
    let all: Vec<String> = said.iter().map(ToString::to_string).collect();
    let text = match &*all {
        [only] => format!("{only}{advice}"),
        all if of_sentinels => format!("no Sentinel is of use: {}{advice}", all.join("; ")),
        all => format!("no server of the cluster is of use: {}{advice}", all.join("; ")),
    };
    if said.iter().all(Error::is_mistake) {
        Error::config(text)
    } else if said.iter().all(|error| error.is_mistake() || matches!(error, Error::Refused(_))) {
        Error::of(Failure::refused(text))
    } else {
        Error::unavailable(text)
    }
}
