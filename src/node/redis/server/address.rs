//! Checks whether the address still resolves to the server of our connections, as [`AddressCheck`] decides.

use std::{
    future::pending,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{
    address_check::{AddressCheck, Finding},
    failure::Failure,
    message::Request,
};

use super::Connections;
use crate::{
    foreign::{self, Event},
    metrics::NodeCount,
    node::{
        Seat,
        redis::{
            info,
            transport::{Connection, Link},
        },
    },
};

/// The pause after a check, before another one because two nodes of a quorum have shown one server.
const BETWEEN_CONTESTS: Duration = Duration::from_millis(500);

/// The findings so far, and whether there is a reason for another check.
#[derive(Debug, Default)]
pub(super) struct AddressFindings {
    /// The address resolves now to one server and now to another.
    is_mixed: AtomicBool,
    /// A lock was asked for since the last check. It may be free again by the next.
    was_asked: AtomicBool,
}

impl AddressFindings {
    /// Why this request must not be sent: no lock is granted while it is unknown which server has it.
    pub(super) fn refuse(&self, request: &Request, address: &str) -> Option<Failure> {
        if !matches!(request, Request::Acquire(_) | Request::Poll(_) | Request::Rehearse { .. }) {
            return None;
        }
        // Usually it is set already, and need not be written.
        if !self.was_asked.load(Ordering::Relaxed) {
            self.was_asked.store(true, Ordering::Relaxed);
        }
        self.is_mixed.load(Ordering::Relaxed).then(|| {
            Failure::unavailable(format!(
                "{address} leads now to one server and now to another, and each would grant the lock: have it lead every \
                 program to one server. (Does a proxy there only look like several? Then set check_address_every to zero)"
            ))
        })
    }
}

/// Checks the address until the connections are closed. While no lock is held or asked for, it asks nothing. It also
/// checks when another node of the quorum has shown the same server, and only then if `every` is zero.
pub(super) async fn look_after(connections: Weak<Connections>, every: Duration, seat: Option<Seat>) {
    let mut check = AddressCheck::default();
    loop {
        let Some((host, closed)) =
            connections.upgrade().map(|connections| (connections.host.clone(), connections.subscription.closed()))
        else {
            return;
        };
        let contested = async {
            let Some(seat) = &seat else { return pending().await };
            host.sleep(BETWEEN_CONTESTS).await;
            seat.contested().await;
        };
        let next = async {
            if every.is_zero() {
                pending::<()>().await;
            }
            host.sleep(every).await;
        };
        let due = async {
            tokio::select! {
                () = next => false,
                () = contested => true,
            }
        };
        let Some(is_contested) = closed.run_until_cancelled(due).await else { return };
        let Some(connections) = connections.upgrade() else { return };
        let was_asked = connections.findings.was_asked.swap(false, Ordering::Relaxed);
        if is_contested || was_asked || connections.subscription.is_needed() {
            // Boxed: it is large and rarely needed, and the task exists from the first connection on.
            let _in_time = closed.run_until_cancelled(Box::pin(connections.look(&mut check, every.is_zero()))).await;
        }
    }
}

/// One of our links, and the run of the server that it is connected to, if known.
type Lead<'a> = (&'a Connection, Arc<Link>, Option<Box<str>>);

impl Connections {
    async fn look(&self, check: &mut AddressCheck, may_look_mixed: bool) {
        let ours = self.lead_to().await;
        if ours.is_empty() {
            // They are being opened again, wherever the address resolves to now.
            return;
        }
        check.begin(ours.iter().filter_map(|(_, _, run_id)| run_id.clone()));
        let finding = loop {
            let Ok(info) = self.keeper.fresh_info(self.host.clone()).await else { return };
            // A server that does not report its run id looks like any other.
            let Some(run_id) = info::identity(&info).run_id else { break Finding::Same };
            if let Some(finding) = check.found(&run_id) {
                break finding;
            }
        };
        let is_mixed = finding == Finding::Mixed && !may_look_mixed;
        let was_mixed = self.findings.is_mixed.swap(is_mixed, Ordering::Relaxed);
        let node = || self.address.clone();
        if let Finding::Moved(run_id) = finding {
            // Answers from the server that was left are ignored from now on. One that does not answer may still answer.
            let elsewhere = ours.iter().filter(|(_, _, ours)| ours.as_ref() != Some(&run_id));
            let left = elsewhere.filter(|(connection, link, _)| connection.give_up(link)).count();
            // Zero, if the server was restarted meanwhile. If no run of ours was known, our links may have led there.
            if left > 0 && ours.iter().any(|(_, _, run_id)| run_id.is_some()) {
                self.metrics.count(NodeCount::Move);
                foreign::tell(Event::ServerMoved { node: node() });
            }
        } else if is_mixed && !was_mixed {
            foreign::tell(Event::ServersMixed { node: node() });
        } else if was_mixed && !is_mixed {
            foreign::tell(Event::ServerSettled { node: node() });
        }
    }

    /// The servers of our own links.
    async fn lead_to(&self) -> Vec<Lead<'_>> {
        let home = self.home.as_ref().map(|(_, home)| home);
        let mut ours = Vec::with_capacity(2);
        for connection in [Some(&self.keeper), home].into_iter().flatten() {
            if let Some((link, info)) = connection.server_info().await {
                if let Some(run_id) = info.and_then(|info| info::identity(&info).run_id) {
                    link.note_where_it_leads(Some(run_id));
                }
                let run_id = link.leads_to().flatten().map(Into::into);
                ours.push((&**connection, link, run_id));
            }
        }
        ours
    }
}
