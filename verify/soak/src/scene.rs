//! Servers on their own and those of a quorum, and the links of the worker processes to them.

use std::{
    ops::Deref,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use support::{Nodes, Proxy, Server, ServerBuilder, urls};

use crate::{
    crew::{Crew, Scenery, Worker},
    history::Loss,
    password::Password,
    record::Process,
    setup::{LONE, Stage},
};

/// Everything that takes part in a round.
pub struct Scene {
    pub crew: Crew,
    pub servers: Nodes,
    /// A server with the lone server's clock, to which the lone server's address sometimes resolves.
    stand_in: Server,
    stands_in: AtomicBool,
    /// Shared while a fault affects workers that resolve the address again; held exclusively while the address moves.
    calm: RwLock<()>,
    /// The links of each worker, one to each server.
    pub links: Vec<Vec<Proxy>>,
    password: Mutex<Password>,
}

impl Deref for Scene {
    type Target = Crew;

    fn deref(&self) -> &Crew {
        &self.crew
    }
}

impl Scenery for Scene {
    fn worker(&self, process: Process) -> Worker {
        let password = self.password().file().display().to_string();
        self.hire(process, urls(&self.links[usize::from(process.slot)]), password)
    }

    /// Keeps all addresses where they are while the guard is held.
    fn troubled(&self) -> Option<RwLockReadGuard<'_, ()>> {
        Some(self.calm.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Scene {
    /// Servers that keep their data over a restart and have been up for long, and links for this many workers.
    pub fn new(stage: Stage, seed: u64, workers: u16, kinds: u64) -> Self {
        // Without fsync, because the writes of a killed process survive anyway.
        let lasting = |server: ServerBuilder| server.aof(true).arg("--appendfsync", "no");
        let servers = Nodes::with(stage.servers(), lasting).season();
        let stand_in = lasting(Server::builder().clock(servers.clock(LONE))).start();
        let links = (0..workers).map(|_| servers.proxies()).collect();
        let password = Mutex::new(Password::new([&servers[LONE], &stand_in]));
        Self {
            crew: Crew::new(stage, stage.names(), seed, kinds),
            servers,
            stand_in,
            stands_in: AtomicBool::new(false),
            calm: RwLock::new(()),
            links,
            password,
        }
    }

    /// The server to which this server's address resolves.
    pub fn server(&self, at: usize) -> &Server {
        if at == LONE && self.stands_in.load(Ordering::SeqCst) { &self.stand_in } else { &self.servers[at] }
    }

    /// The lone server and its stand-in.
    pub fn lone_servers(&self) -> [&Server; 2] {
        [&self.servers[LONE], &self.stand_in]
    }

    /// Moves the lone server's address to the other server from now on. Connections stay where they are.
    pub fn move_lone(&self) {
        self.stands_in.fetch_xor(true, Ordering::SeqCst);
        for links in &self.links {
            links[LONE].turn_to(self.server(LONE).port());
        }
    }

    /// Keeps workers that resolve an address free of faults while the guard is held.
    pub fn calm(&self) -> RwLockWriteGuard<'_, ()> {
        self.calm.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The password of the server on its own.
    pub fn password(&self) -> MutexGuard<'_, Password> {
        self.password.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn loss(&self, loss: Loss) {
        self.recorder().history.losses.push(loss);
    }
}
