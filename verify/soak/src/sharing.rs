//! The actions of a task on a name that several may hold at a time.

use std::num::NonZeroU32;

use leasehold::{Error, Lock, Mode};

use crate::{
    record::{Call, Ending, LeaseId, Line, Outcome, now},
    setup::{Access, PERMITS},
    worker::{Asked, Held, Job, say},
};

impl Job {
    /// The lock in one of the modes of its name, under a label that distinguishes its lease from every other one.
    pub fn lock_to_share(&mut self, id: LeaseId) -> Lock {
        let (leases, name, chance) = (&self.leases, self.kind.name, &mut self.chance);
        let names = leases.rw_lock(name);
        let lock = match (self.kind.access, chance.below(32)) {
            (Access::Permits(of, takes), _) => leases.semaphore(name, of).take(*chance.pick(takes)),
            (Access::ReadWrite | Access::Any, 0..=2) => names.write(),
            (Access::ReadWrite, _) | (Access::Any, 3..=12) => names.read(),
            (Access::Any, 13..=30) => leases.semaphore(name, *chance.pick(&PERMITS)),
            (Access::Any, _) => leases.lock(name),
            (Access::Alone, _) => self.lock.clone(),
        };
        let lock = lock.label(id.to_string());
        if chance.one_in(32) { lock.keep_for(chance.millis(1, 30)) } else { lock }
    }

    /// Continues as a reader, to the end of that lease too.
    pub async fn downgrade(&mut self, held: Held, asked: Asked) -> Option<Held> {
        Self::say_let_go(&held, Ending::Downgrade);
        let (writer, left, invoked) = (held.id(), held.lease.remaining(), now());
        let shared = self.in_time(Call::Downgrade, left, held.lease.downgrade()).await?;
        let start = now();
        match shared {
            Ok(lease) => {
                say([Line::Counted(Outcome::Downgraded)]);
                let asked = Asked {
                    id: self.next_id(),
                    mode: Mode::Shared { limit: None, permits: NonZeroU32::MIN },
                    invoked,
                    ..asked
                };
                return self.hold_to_its_end(lease, asked, start).await;
            }
            Err(Error::Lost(_)) => {
                say([Line::ReleaseLost { lease: writer, at: start }, Line::Counted(Outcome::DowngradeLost)]);
            }
            Err(Error::Unavailable(_)) => say([Line::Counted(Outcome::DowngradeUnavailable)]),
            Err(error) => {
                eprintln!("{writer} goes on as a reader: {error}");
                say([Line::Counted(Outcome::Failed)]);
            }
        }
        None
    }
}
