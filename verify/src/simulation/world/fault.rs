//! The faults: by chance, and by a sly network that knows the protocol.

use std::time::Duration;

use leasehold_protocol::{store::Store, token::Token};

use super::{
    super::{
        chance::{Real, nanos},
        profile::Faults,
    },
    Event, Message, Request, World,
};
/// A fault that happens now and then.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Fault {
    Crash,
    Pause,
    Cut,
    Death,
}

impl World {
    pub(super) fn schedule_faults(&mut self) {
        for fault in [Fault::Crash, Fault::Pause, Fault::Cut, Fault::Death] {
            self.schedule(fault);
        }
    }

    /// Schedules the next fault of this kind.
    fn schedule(&mut self, fault: Fault) {
        let Faults { crashes, pauses, cuts, deaths, .. } = self.faults;
        let mean = match fault {
            Fault::Crash => crashes,
            Fault::Pause => pauses,
            Fault::Cut => cuts,
            Fault::Death => deaths,
        };
        if let Some(mean) = mean {
            let at = self.now + nanos(self.dice.between(Duration::ZERO, mean * 2));
            if at < self.closes {
                self.at(at, Event::Inject(fault));
            }
        }
    }

    pub(in super::super) fn inject(&mut self, fault: Fault) {
        let client = self.pick(self.paused_until.len());
        match fault {
            Fault::Crash => {
                let node = self.pick(self.nodes());
                let down = self.dice.between(Duration::ZERO, self.faults.down);
                self.crash(node, down);
            }
            Fault::Pause => {
                let until = self.now + nanos(self.dice.between(Duration::ZERO, self.faults.longest_pause));
                self.paused_until[client] = until;
                self.note(|| format!("client {client} stands still until {} µs", until / 1_000));
            }
            Fault::Cut => {
                for node in 0..self.nodes() {
                    if self.dice.percent(60) {
                        self.cut(client, node);
                    }
                }
            }
            Fault::Death => self.at(self.now, Event::Dies(client)),
        }
        self.schedule(fault);
    }

    /// A client that has just won may stand still just then.
    pub(in super::super) fn stall(&mut self, client: usize) {
        if self.dice.percent(self.faults.stalls) {
            self.paused_until[client] = self.now + nanos(self.dice.between(self.ttl / 2, self.ttl * 2));
        }
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.dice.below(of as u64)).unwrap_or_default()
    }

    fn cut(&mut self, client: usize, node: usize) {
        let until = self.now + nanos(self.dice.between(Duration::ZERO, self.faults.longest_cut));
        self.cut_until[client][node] = until;
        self.note(|| format!("client {client} and node {node} are cut off until {} µs", until / 1_000));
    }

    fn crash(&mut self, node: usize, down: Duration) {
        self.note(|| format!("node {node} is down for {down:?}"));
        self.servers[node].is_down = true;
        self.at(self.now + nanos(down), Event::Restarts(node));
    }

    /// A node restarts without its memory. It calculates its uptime from whole seconds, and so by up to one second too
    /// long.
    pub(in super::super) fn restart(&mut self, node: usize) {
        let now = self.time_at(node) / 1_000_000 * 1_000_000;
        let server = &mut self.servers[node];
        (server.store, server.is_down) = (Store::started(now), false);
        if self.faults.is_sly {
            self.let_through(node);
        }
    }

    /// Holds a repair back for as long as it can do harm, and keeps the client from its lease on another node.
    pub(super) fn is_held_up(&mut self, message: &Message) -> bool {
        if !self.faults.is_sly || !matches!(message.request, Request::Repair { .. }) {
            return false;
        }
        let (client, repaired) = (message.client, message.node);
        let others: Vec<usize> = (0..self.nodes()).filter(|node| *node != repaired).collect();
        if self.dice.percent(90) {
            let node = others[self.pick(others.len())];
            self.cut_until[client][node] = self.now + nanos(self.ttl * 3 / 2);
        }
        let late = self.dice.between(self.ttl * 4 / 5, self.ttl);
        self.at(self.now + nanos(late), Event::Arrives(message.clone()));
        true
    }

    /// A node has just voted for a client. A repair may be held up there, for a lease that is about to lose its key on
    /// another node. If this client's acquire is on its way to that other node, forgets the vote, and delays the
    /// acquire until the key is gone.
    pub(super) fn voted(&mut self, client: usize, node: usize) {
        if !self.faults.is_sly {
            return;
        }
        let repair = |message: &Message| match &message.request {
            Request::Repair { claim, .. } if message.node == node => Some(claim.token.clone()),
            _ => None,
        };
        let repaired: Vec<Token> = self.on_their_way(repair).map(|(_, token)| token).collect();
        let acquire = |message: &Message| {
            (message.client == client && matches!(message.request, Request::Acquire(_))).then_some(message.node)
        };
        let acquires: Vec<_> = self.on_their_way(acquire).collect();
        for (at, other) in acquires {
            let Some(holder) = self.holder(other) else { continue };
            let (Some(token), Some(left)) = (holder.whole_token(), holder.remaining()) else { continue };
            if left < self.ttl / 7 && repaired.contains(token) {
                self.lull_until = self.now + nanos(self.ttl / 5);
                if self.dice.percent(70) {
                    self.crash(node, Duration::from_micros(100));
                } else {
                    self.let_through(node);
                }
                if let Some(acquire) = self.events.remove(&at) {
                    self.at(self.now + nanos(left + left / 100 + Duration::from_millis(1)), acquire);
                }
            }
        }
    }

    /// Lets the held-up repairs of this node arrive now.
    fn let_through(&mut self, node: usize) {
        let repair = |message: &Message| {
            (message.node == node && matches!(message.request, Request::Repair { .. })).then_some(())
        };
        let held_up: Vec<_> = self.on_their_way(repair).collect();
        for (at, ()) in held_up {
            if let Some(repair) = self.events.remove(&at) {
                self.at(self.now + 1_000, repair);
            }
        }
    }

    /// Some of the requests that have not arrived.
    fn on_their_way<T>(&self, which: impl Fn(&Message) -> Option<T>) -> impl Iterator<Item = ((Real, u64), T)> {
        self.events.iter().filter_map(move |(at, event)| match event {
            Event::Arrives(message) => Some((*at, which(message)?)),
            _ => None,
        })
    }
}
