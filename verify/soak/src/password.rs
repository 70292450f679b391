//! The password with which workers use the lone server and its stand-in.

use std::{fs, path::PathBuf};

use support::Server;

use crate::setup::USER;

/// A password that changes. The servers know it by command, the workers by a file.
pub struct Password {
    file: PathBuf,
    turn: u32,
}

impl Password {
    /// A password that these servers know, and any reader of the file beside the first one's data.
    pub fn new(servers: [&Server; 2]) -> Self {
        let password = Self { file: servers[0].directory().join("password"), turn: 0 };
        password.tell_servers(servers);
        password.tell_workers();
        password
    }

    /// The file that workers read it from.
    pub fn file(&self) -> PathBuf {
        self.file.clone()
    }

    /// Changes the password. Neither side knows the new one yet.
    pub fn turn(&mut self) {
        self.turn += 1;
    }

    pub fn tell_servers(&self, servers: [&Server; 2]) {
        let password = format!(">{}", self.text());
        for server in servers {
            server.wire().must(&["ACL", "SETUSER", USER, "on", "resetpass", &password, "~*", "&*", "+@all"]);
        }
    }

    /// Writes the file in one step, so that no worker reads half of it.
    pub fn tell_workers(&self) {
        let whole = self.file.with_extension("new");
        fs::write(&whole, self.text())
            .and_then(|()| fs::rename(&whole, &self.file))
            .expect("the password can be written");
    }

    fn text(&self) -> String {
        format!("secret-{}", self.turn)
    }
}
