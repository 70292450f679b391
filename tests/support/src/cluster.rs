//! Real clusters, made by raw commands.

use std::{ops::Range, time::Duration};

use super::{
    clock_shim::ClockShim,
    replicated::online,
    resp::Value,
    server::{Server, ServerBuilder},
    tls::Authority,
    wait::eventually,
};

/// A primary without a sign of life for this long counts as dead.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// By then a cluster is ready, even on a busy machine.
const READY: Duration = Duration::from_secs(60);

const SLOTS: usize = 16_384;

/// A cluster's servers: first the primaries, each with an equal part of the slots, then their replicas in the same
/// order.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    primaries: usize,
    /// Whether the servers use TLS among each other.
    has_tls: bool,
    /// The clock of all servers; without one they use the machine's.
    clock: Option<ClockShim>,
}

impl Cluster {
    /// A cluster of `primaries` primaries with `replicas` replicas each.
    #[track_caller]
    pub fn start(primaries: usize, replicas: usize) -> Self {
        Self::with(primaries, replicas, |server| server)
    }

    /// Like [`Cluster::start`], with more settings for each server.
    #[track_caller]
    pub fn with(primaries: usize, replicas: usize, more: impl Fn(ServerBuilder) -> ServerBuilder) -> Self {
        Self::of(primaries, replicas, Some(ClockShim::new()), false, more)
    }

    /// Like [`Cluster::start`], with TLS among the servers, and for clients that want it.
    #[track_caller]
    pub fn start_with_tls(primaries: usize, replicas: usize, authority: &Authority) -> Self {
        let more = |server: ServerBuilder| server.tls_by(authority).arg("--tls-cluster", "yes");
        Self::of(primaries, replicas, Some(ClockShim::new()), true, more)
    }

    /// Like [`Cluster::start`], but with the machine's clock and no shim, as in production. It takes two seconds
    /// longer.
    #[track_caller]
    pub fn start_unshimmed(primaries: usize, replicas: usize) -> Self {
        Self::of(primaries, replicas, None, false, |server| server)
    }

    #[track_caller]
    fn of(
        primaries: usize,
        replicas: usize,
        clock: Option<ClockShim>,
        has_tls: bool,
        more: impl Fn(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        // A replica is not listed before its primary has written, or pinged it, which takes ten seconds by default.
        let prompt = || Server::builder().arg("--repl-diskless-sync-delay", "0").arg("--repl-ping-replica-period", "1");
        let by_the_clock = |server: ServerBuilder| clock.iter().fold(server, ServerBuilder::clock);
        let server = |_| more(by_the_clock(prompt().cluster(true))).start();
        let servers: Vec<Server> = (0..primaries * (1 + replicas)).map(server).collect();
        let cluster = Self { servers, primaries, has_tls, clock };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (at, server) in self.servers.iter().enumerate() {
            let (mut wire, epoch) = (server.wire(), (at + 1).to_string());
            wire.must(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if at < self.primaries {
                let slots: Vec<String> = self.slots_of(at).map(|slot| slot.to_string()).collect();
                let all: Vec<&str> =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
                wire.must(&all);
            }
        }
        // A new primary waits for two seconds before it reports that it is up, and for a node timeout since it had no
        // slots.
        if let Some(clock) = &self.clock {
            clock.forward(Duration::from_secs(3));
        }
        for one in &self.servers {
            let mut wire = one.wire();
            for other in self.servers.iter().filter(|other| other.port() != one.port()) {
                let port = if self.has_tls { other.tls_port() } else { other.port() };
                wire.must(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string()]);
            }
        }
        for (at, replica) in self.servers.iter().enumerate().skip(self.primaries) {
            let primary = self.id(at % self.primaries);
            eventually(READY, "a replica knows its primary", || {
                replica.wire().cmd(&["CLUSTER", "REPLICATE", &primary]).error().is_none()
            });
        }
        eventually(READY, "the cluster is ready", || (0..self.servers.len()).all(|at| self.is_ready(at)));
    }

    /// Dissolves the cluster, with all keys, and makes another from the same servers, without replicas.
    #[track_caller]
    pub fn make_again(&self) {
        for server in &self.servers {
            let mut wire = server.wire();
            wire.must(&["FLUSHALL"]);
            wire.must(&["CLUSTER", "RESET", "HARD"]);
        }
        self.join();
    }

    fn is_ready(&self, at: usize) -> bool {
        let mut wire = self.servers[at].wire();
        let info = wire.cmd(&["CLUSTER", "INFO"]).text();
        let has = |line: &str| info.lines().any(|of_info| of_info.trim_end() == line);
        let replicas = self.servers.len() / self.primaries - 1;
        let is_linked = at >= self.primaries || online(&self.servers[at]) == replicas;
        // Each primary is listed with all of its replicas.
        let servers = 3 + replicas;
        let is_listed = match wire.cmd(&["CLUSTER", "SLOTS"]) {
            Value::Array(entries) => {
                entries.len() == self.primaries
                    && entries.iter().all(|entry| matches!(entry, Value::Array(parts) if parts.len() == servers))
            }
            _ => false,
        };
        has("cluster_state:ok") && has("cluster_slots_assigned:16384") && is_linked && is_listed
    }

    /// A server's id in its cluster.
    pub fn id(&self, at: usize) -> String {
        self.servers[at].wire().cmd(&["CLUSTER", "MYID"]).text()
    }

    /// All servers, primaries first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The initial primaries.
    pub fn primaries(&self) -> &[Server] {
        &self.servers[..self.primaries]
    }

    /// The first replica of a primary.
    pub fn replica_of(&self, primary: usize) -> &Server {
        &self.servers[self.primaries + primary]
    }

    /// The clock of all servers.
    pub fn clock(&self) -> &ClockShim {
        self.clock.as_ref().expect("it does not go by the machine's clock")
    }

    /// The initial primary of a key.
    pub fn home_of(&self, key: &str) -> usize {
        let slot = usize::from(self.slot_of(key));
        (0..self.primaries).find(|at| self.slots_of(*at).contains(&slot)).expect("every slot has a home")
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self.servers[0].wire().cmd(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// Moves a slot with its keys, as an operator's tool does: key by key.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move(slot, from, to);
        self.finish_moving(slot, from, to);
    }

    /// Begins to move a slot, whose keys then move one by one.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, [from_id, to_id]) = (slot.to_string(), [from, to].map(|at| self.id(at)));
        self.servers[to].wire().must(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.servers[from].wire().must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Some of a server's keys in a slot.
    pub fn keys_in(&self, slot: u16, at: usize) -> Vec<String> {
        match self.servers[at].wire().cmd(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]) {
            Value::Array(keys) => keys.iter().map(Value::text).collect(),
            other => panic!("the keys of slot {slot}: {other:?}"),
        }
    }

    /// Moves one key of a moving slot.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.servers[to].port().to_string();
        self.servers[from].wire().must(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves all remaining keys, and then the slot.
    pub fn finish_moving(&self, slot: u16, from: usize, to: usize) {
        while let keys = self.keys_in(slot, from)
            && !keys.is_empty()
        {
            for key in keys {
                self.move_key(&key, from, to);
            }
        }
        self.have_moved(slot, from, to);
    }

    /// Completes a move once all keys have moved.
    fn have_moved(&self, slot: u16, from: usize, to: usize) {
        let to_id = self.id(to);
        let others = (0..self.primaries).filter(|at| ![to, from].contains(at));
        for at in [to, from].into_iter().chain(others) {
            self.servers[at].wire().must(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &to_id]);
        }
        // If moved again earlier, the slot could be lost between the servers.
        self.await_owner(slot, &to_id);
    }

    fn await_owner(&self, slot: u16, id: &str) {
        let agree = || self.primaries().iter().all(|server| owner(server, slot).as_deref() == Some(id));
        eventually(READY, "all agree who has the slot", agree);
    }

    /// Assigns all initial slots of a primary to another one at once, without the keys, so that it is like new.
    pub fn give_all_slots(&self, from: usize, to: usize) {
        let slots: Vec<String> = self.slots_of(from).map(|slot| slot.to_string()).collect();
        let all =
            |command| ["CLUSTER", command].into_iter().chain(slots.iter().map(String::as_str)).collect::<Vec<_>>();
        self.servers[from].wire().must(&all("DELSLOTS"));
        let mut wire = self.servers[to].wire();
        // Its claim then has a higher epoch than the other's last one.
        wire.must(&["CLUSTER", "BUMPEPOCH"]);
        wire.must(&["MULTI"]);
        wire.must(&all("DELSLOTS"));
        wire.must(&all("ADDSLOTS"));
        for done in wire.must(&["EXEC"]).array() {
            assert_eq!(done.text(), "OK");
        }
        let some = u16::try_from(self.slots_of(from).start).expect("a slot");
        self.await_owner(some, &self.id(to));
    }

    /// Cancels a move, as an operator does: the slot stays where it was, and keys that have moved are lost.
    pub fn give_up_moving(&self, slot: u16, from: usize, to: usize) {
        for at in [from, to] {
            self.servers[at].wire().must(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
        }
    }

    /// The initial slots of a primary.
    pub fn slots_of(&self, primary: usize) -> Range<usize> {
        SLOTS * primary / self.primaries..SLOTS * (primary + 1) / self.primaries
    }

    /// `count` names based on `like` whose slots are in `slots`.
    pub fn names_in(&self, slots: &Range<usize>, like: &str, count: usize) -> Vec<String> {
        let mut wire = self.servers[0].wire();
        let mut slot_of = |name: &str| wire.cmd(&["CLUSTER", "KEYSLOT", name]).int();
        // The names are spread over all slots.
        let most = (count + 10) * SLOTS / slots.len() * 10;
        let names = (0..most).map(|number| format!("{like}-{number}"));
        let names: Vec<String> = names
            .filter(|name| usize::try_from(slot_of(name)).is_ok_and(|slot| slots.contains(&slot)))
            .take(count)
            .collect();
        assert_eq!(names.len(), count, "of {most} names");
        names
    }

    /// Makes these servers forget the owner of the slot. One may learn it again from an older message of the owner.
    pub fn delete_slot(&self, slot: u16, servers: &[Server]) {
        let mut looks = 0;
        eventually(READY, "the slot has no owner", || {
            looks += 1;
            let know_one: Vec<_> = servers.iter().filter(|server| owner(server, slot).is_some()).collect();
            for server in &know_one {
                // This is an error if the server has forgotten the owner by itself.
                server.wire().cmd(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
            }
            know_one.is_empty() && looks > 5
        });
    }

    /// A name based on `like` whose slot is on this primary.
    pub fn name_at(&self, primary: usize, like: &str) -> String {
        let names = (0..1_000).map(|number| format!("{like}-{number}"));
        names.into_iter().find(|name| self.home_of(name) == primary).expect("one of a thousand names")
    }

    /// The url with all primaries.
    pub fn url(&self) -> String {
        self.url_of(self.primaries())
    }

    /// The url with these servers.
    pub fn url_of(&self, servers: &[Server]) -> String {
        let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The url with the TLS ports of all primaries, on this host.
    pub fn tls_url(&self, host: &str) -> String {
        let hosts: Vec<String> =
            self.primaries().iter().map(|server| format!("{host}:{}", server.tls_port())).collect();
        format!("rediss-cluster://{}", hosts.join(","))
    }
}

/// The id of the slot's owner, according to this server.
fn owner(server: &Server, slot: u16) -> Option<String> {
    let Value::Array(entries) = server.wire().cmd(&["CLUSTER", "SLOTS"]) else { return None };
    entries.iter().find_map(|entry| match entry {
        Value::Array(parts) if (parts[0].int()..=parts[1].int()).contains(&i64::from(slot)) => match &parts[2] {
            Value::Array(server) => Some(server[2].text()),
            _ => None,
        },
        _ => None,
    })
}
