//! From the command line to the servers.

use leasehold::{Builder, Leases};

use crate::args::Servers;

impl Servers {
    pub(crate) fn builder(&self) -> Builder {
        let builder = Leases::builder().connect_timeout(self.connect_timeout).prefix(&self.prefix);
        if self.quorum.is_empty() { builder.url(&self.url) } else { builder.quorum(&self.quorum) }
    }
}
