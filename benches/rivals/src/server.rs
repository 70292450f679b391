//! A redis-server of one benchmark run.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{
        Builder,
        config::{Config, ServerConfig},
    },
};
use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

/// A plain client of a server on this machine, for another process too.
pub async fn client_at(port: u16) -> Result<Client> {
    client_of(ServerConfig::new_centralized("127.0.0.1", port)).await
}

/// A plain client of any servers.
pub async fn client_of(server: ServerConfig) -> Result<Client> {
    let client = Builder::from_config(Config { server, ..Config::default() })
        .with_connection_config(|connection| connection.tcp.nodelay = Some(true))
        .build()?;
    client.init().await?;
    Ok(client)
}

/// A server on a free port of this machine. It runs until it is dropped, and keeps nothing on disk.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    directory: PathBuf,
}

impl Server {
    pub fn start() -> Result<Self> {
        // Another process may take the port before the server does.
        (0..5).find_map(|_| Self::try_start().ok()).ok_or_else(|| "redis-server cannot be started".into())
    }

    fn try_start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let directory = env::temp_dir().join(format!("leasehold-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .spawn()?;
        let mut server = Self { child, port, directory };
        for _ in 0..200 {
            if server.child.try_wait()?.is_some() {
                return Err("redis-server ended at once".into());
            }
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("redis-server does not answer".into())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The ID of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A plain client on the calling runtime.
    pub async fn client(&self) -> Result<Client> {
        client_at(self.port).await
    }

    /// Suspends it, as if the network swallowed everything on its way to it.
    pub fn freeze(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Lets it continue.
    pub fn thaw(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Seconds of processor time that the server has used.
    pub fn cpu(&self) -> Result<f64> {
        crate::usage::cpu_of(self.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
