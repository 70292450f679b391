//! Everything outside of the clients: the nodes, what is between them, and what befalls them.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Bug,
    chance::{Dice, Real, Skewed, nanos},
    client::Alarm,
    history::{History, Violation},
    weather::Weather,
};
use crate::{
    fence::Fence,
    holder::Holder,
    key::Key,
    node::{
        Acquired, Ballot, Bid, Failure, Healed, Owned, Renewal,
        memory::store::{Micros, Store},
    },
    token::Token,
};

/// Who holds what, where and when.
pub(super) struct World {
    pub(super) now: Real,
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    pub(super) bug: Bug,
    pub(super) ttl: Duration,
    pub(super) restart_delay: Duration,
    pub(super) command_timeout: Duration,
    pub(super) key: Key,
    pub(super) history: History,
    /// From then on everybody lets go, and nothing more breaks.
    pub(super) closes: Real,
    pub(super) last_arrival: Real,
    /// What is to come, in order; of what comes at one moment, first what was settled first.
    events: BTreeMap<(Real, u64), Event>,
    tickets: u64,
    servers: Vec<Server>,
    paused_until: Vec<Real>,
    /// Until when a client's messages to and from a node are lost.
    cut_until: Vec<Vec<Real>>,
    /// What happened, for people, if anybody wants to read it.
    pub(super) trace: Option<Vec<(Real, String)>>,
}

struct Server {
    clock: Skewed,
    store: Store,
    is_down: bool,
    /// When the key got its present value.
    appeared: Real,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Arrives(Message),
    Answered {
        client: usize,
        request: u64,
        said: Result<Reply, Failure>,
        executed: Real,
    },
    Rings {
        client: usize,
        alarm: Alarm,
    },
    /// A client's process ends, and another begins.
    Dies(usize),
    Restarts(usize),
    Strikes(Trouble),
}

/// What befalls somebody now and then.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    Crash,
    Pause,
    Cut,
    Death,
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) node: usize,
    pub(super) number: u64,
    pub(super) request: Request,
}

#[derive(Debug, Clone)]
pub(super) enum Request {
    Bid(Bid),
    Raise(Token, Fence),
    Renew(Renewal),
    Heal(Renewal, Fence, Duration),
    Release(Token),
}

#[derive(Debug, Clone)]
pub(super) enum Reply {
    Ballot(Ballot),
    Owned(Owned),
    Healed(Healed),
}

impl World {
    pub(super) fn new(
        clients: usize,
        nodes: usize,
        (ttl, restart_delay): (Duration, Duration),
        weather: Weather,
        bug: Bug,
        mut dice: Dice,
    ) -> Self {
        let command_timeout = if weather.is_sly { ttl } else { dice.between(ttl / 4, ttl * 2) };
        let server = |_| {
            let clock = weather.clock(&mut dice);
            Server { clock, store: Store::default(), is_down: false, appeared: 0 }
        };
        let servers = (0..nodes).map(server).collect();
        let mut world = Self {
            now: 0,
            dice,
            weather,
            bug,
            ttl,
            restart_delay,
            command_timeout,
            key: Key::new("", "job").unwrap(),
            history: History::default(),
            closes: nanos(ttl) * 8,
            last_arrival: 0,
            events: BTreeMap::new(),
            tickets: 0,
            servers,
            paused_until: vec![0; clients],
            cut_until: vec![vec![0; nodes]; clients],
            trace: None,
        };
        for trouble in [Trouble::Crash, Trouble::Pause, Trouble::Cut, Trouble::Death] {
            world.brew(trouble);
        }
        world
    }

    pub(super) fn nodes(&self) -> usize {
        self.servers.len()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.now >= self.closes
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push((now, what()));
        }
    }

    pub(super) fn at(&mut self, at: Real, event: Event) {
        self.tickets += 1;
        self.events.insert((at.max(self.now), self.tickets), event);
    }

    /// The next event, with the time moved on to it. What is for a client that stands still waits for it.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let ((at, _), event) = self.events.pop_first()?;
            let client = match &event {
                Event::Answered { client, .. } | Event::Rings { client, .. } | Event::Dies(client) => Some(*client),
                _ => None,
            };
            self.now = at;
            match client.map(|client| self.paused_until[client]) {
                Some(until) if until > at => self.at(until, event),
                _ => return Some(event),
            }
        }
    }

    /// Sends a request: its number, with which it is answered.
    pub(super) fn send(&mut self, client: usize, node: usize, request: Request) -> u64 {
        self.tickets += 1;
        let number = self.tickets;
        if self.dice.percent(self.weather.refused) {
            self.answer(client, number, Err(Failure::unavailable("not connected")));
            return number;
        }
        let mut is_lost = true;
        let copies = if self.dice.percent(self.weather.doubled) { 2 } else { 1 };
        let message = Message { client, node, number, request };
        if self.weather.is_sly && matches!(message.request, Request::Heal(..)) {
            self.hold_up(message);
            return number;
        }
        for _ in 0..copies {
            if self.passes(client, node) {
                is_lost = false;
                let at = self.now + self.weather.delay(&mut self.dice);
                self.at(at, Event::Arrives(message.clone()));
            }
        }
        if is_lost {
            self.lose(client, number);
        }
        number
    }

    fn passes(&mut self, client: usize, node: usize) -> bool {
        self.cut_until[client][node] <= self.now && !self.dice.percent(self.weather.lost)
    }

    /// The client hears of it at once, or finds out by waiting.
    fn lose(&mut self, client: usize, number: u64) {
        if self.dice.percent(50) {
            self.answer(client, number, Err(Failure::unknown("the connection was reset")));
        }
    }

    fn answer(&mut self, client: usize, request: u64, said: Result<Reply, Failure>) {
        let at = self.now + self.weather.delay(&mut self.dice);
        self.at(at, Event::Answered { client, request, said, executed: self.now });
    }

    /// A request is there.
    pub(super) fn arrive(&mut self, message: Message) {
        let Message { client, node, number, request } = message;
        if self.servers[node].is_down {
            self.lose(client, number);
            return;
        }
        self.last_arrival = self.now;
        let before = self.owner(node);
        let said = self.execute(node, &request);
        if self.owner(node) != before {
            self.servers[node].appeared = self.now;
        }
        self.note(|| format!("node {node} has {} of client {client}: {}", request.name(), said.brief()));
        if self.passes(client, node) {
            self.answer(client, number, Ok(said.clone()));
        } else {
            self.lose(client, number);
        }
        let has_voted = matches!(&said, Reply::Ballot(Ballot { acquired: Acquired::Granted(_), .. }));
        if self.weather.is_sly && has_voted {
            self.betray(client, node);
        }
    }

    fn execute(&mut self, node: usize, request: &Request) -> Reply {
        let (now, key) = (self.time_at(node), &self.key);
        let store = &mut self.servers[node].store;
        match request {
            Request::Bid(bid) => Reply::Ballot(store.acquire(now, bid)),
            Request::Raise(token, fence) => Reply::Owned(store.raise(now, key, token, *fence)),
            Request::Renew(lease) => Reply::Owned(store.renew(now, lease)),
            Request::Heal(lease, fence, restart_delay) => Reply::Healed(store.heal(now, lease, *fence, *restart_delay)),
            Request::Release(token) => Reply::Owned(store.release(now, key, token, &|_| false).0),
        }
    }

    fn time_at(&self, node: usize) -> Micros {
        self.servers[node].clock.shows(self.now).as_nanos() / 1_000
    }

    /// Whose key is on a node.
    pub(super) fn owner(&mut self, node: usize) -> Option<Token> {
        self.holder(node)?.token
    }

    fn holder(&mut self, node: usize) -> Option<Holder> {
        let now = self.time_at(node);
        self.servers[node].store.holder(now, &self.key)
    }

    /// Since when it is there.
    pub(super) fn appeared(&self, node: usize) -> Real {
        self.servers[node].appeared
    }

    /// Whether no node has anything left.
    pub(super) fn check_is_empty(&mut self) {
        if (0..self.nodes()).any(|node| self.holder(node).is_some()) {
            let at = self.now;
            self.history.saw(Violation::Immortal { at });
        }
    }

    /// Has trouble come at some time.
    fn brew(&mut self, trouble: Trouble) {
        let Weather { crashes, pauses, cuts, deaths, .. } = self.weather;
        let mean = match trouble {
            Trouble::Crash => crashes,
            Trouble::Pause => pauses,
            Trouble::Cut => cuts,
            Trouble::Death => deaths,
        };
        if let Some(mean) = mean {
            let at = self.now + nanos(self.dice.between(Duration::ZERO, mean * 2));
            if at < self.closes {
                self.at(at, Event::Strikes(trouble));
            }
        }
    }

    pub(super) fn strike(&mut self, trouble: Trouble) {
        let client = self.pick(self.paused_until.len());
        match trouble {
            Trouble::Crash => {
                let node = self.pick(self.nodes());
                let down = self.dice.between(Duration::ZERO, self.weather.down);
                self.crash(node, down);
            }
            Trouble::Pause => {
                let until = self.now + nanos(self.dice.between(Duration::ZERO, self.weather.longest_pause));
                self.paused_until[client] = until;
                self.note(|| format!("client {client} stands still until {} µs", until / 1_000));
            }
            Trouble::Cut => {
                for node in 0..self.nodes() {
                    if self.dice.percent(60) {
                        self.cut(client, node);
                    }
                }
            }
            Trouble::Death => self.at(self.now, Event::Dies(client)),
        }
        self.brew(trouble);
    }

    /// A client that has just won may stand still just then.
    pub(super) fn stall(&mut self, client: usize) {
        if self.dice.percent(self.weather.stalls) {
            self.paused_until[client] = self.now + nanos(self.dice.between(self.ttl / 2, self.ttl * 2));
        }
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.dice.below(of as u64)).unwrap_or_default()
    }

    fn cut(&mut self, client: usize, node: usize) {
        let until = self.now + nanos(self.dice.between(Duration::ZERO, self.weather.longest_cut));
        self.cut_until[client][node] = until;
        self.note(|| format!("client {client} and node {node} are cut off until {} µs", until / 1_000));
    }

    fn crash(&mut self, node: usize, down: Duration) {
        self.note(|| format!("node {node} is down for {down:?}"));
        self.servers[node].is_down = true;
        self.at(self.now + nanos(down), Event::Restarts(node));
    }

    /// It remembers nothing.
    pub(super) fn restart(&mut self, node: usize) {
        let now = self.time_at(node);
        let server = &mut self.servers[node];
        (server.store, server.is_down) = (Store::started(now), false);
        if self.weather.is_sly {
            self.let_through(node);
        }
    }

    /// Keeps a heal back for as long as it can do harm, and the client from its lease on another node.
    fn hold_up(&mut self, message: Message) {
        let (client, healed) = (message.client, message.node);
        let others: Vec<usize> = (0..self.nodes()).filter(|node| *node != healed).collect();
        if self.dice.percent(90) {
            let node = others[self.pick(others.len())];
            self.cut_until[client][node] = self.now + nanos(self.ttl * 3 / 2);
        }
        let late = self.dice.between(self.ttl * 4 / 5, self.ttl);
        self.at(self.now + nanos(late), Event::Arrives(message));
    }

    /// A node has just voted for a client. If a heal is held up for it of a lease that is about to lose its key on another
    /// node, to which this client's bid is on its way: forgets the vote, and has the bid arrive when that key is gone.
    fn betray(&mut self, client: usize, node: usize) {
        let heal = |message: &Message| match &message.request {
            Request::Heal(lease, ..) if message.node == node => Some(lease.token.clone()),
            _ => None,
        };
        let healed: Vec<Token> = self.on_their_way(heal).map(|(_, token)| token).collect();
        let bid = |message: &Message| {
            (message.client == client && matches!(message.request, Request::Bid(_))).then_some(message.node)
        };
        let bids: Vec<_> = self.on_their_way(bid).collect();
        for (at, other) in bids {
            let Some(Holder { token: Some(token), remaining: Some(left), .. }) = self.holder(other) else { continue };
            if left < self.ttl / 10 && healed.contains(&token) {
                self.note(|| format!("node {node} betrays"));
                self.crash(node, Duration::from_micros(100));
                if let Some(bid) = self.events.remove(&at) {
                    self.at(self.now + nanos(left + left / 100 + Duration::from_millis(1)), bid);
                }
            }
        }
    }

    /// The heals of this node that are held up arrive now.
    fn let_through(&mut self, node: usize) {
        let heal =
            |message: &Message| (message.node == node && matches!(message.request, Request::Heal(..))).then_some(());
        let held_up: Vec<_> = self.on_their_way(heal).collect();
        for (at, ()) in held_up {
            if let Some(heal) = self.events.remove(&at) {
                self.at(self.now + 1_000, heal);
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

impl Request {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Bid(_) => "a bid",
            Self::Raise(..) => "a raise",
            Self::Renew(_) => "a renewal",
            Self::Heal(..) => "a heal",
            Self::Release(_) => "a release",
        }
    }
}

impl Reply {
    fn brief(&self) -> String {
        match self {
            Self::Ballot(Ballot { acquired: Acquired::Busy { holder, .. }, .. }) => format!("busy with {holder}"),
            Self::Ballot(Ballot { acquired, .. }) => format!("{acquired:?}"),
            Self::Owned(owned) => format!("{owned:?}"),
            Self::Healed(healed) => format!("{healed:?}"),
        }
    }
}
