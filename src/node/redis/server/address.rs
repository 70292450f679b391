//! Looks whether the address still leads to the server that our connections lead to, as [`AddressCheck`] decides.

use std::{
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
    node::redis::{
        info,
        transport::{Connection, Link},
    },
};

/// What the looks have found.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    /// The address leads to another server with each connection.
    is_mixed: AtomicBool,
}

impl Whereabouts {
    /// Why this request must not be sent: no lock is granted where nobody knows which server has it.
    pub(super) fn refuse(&self, request: &Request, address: &str) -> Option<Failure> {
        let acquires = matches!(request, Request::Acquire(_) | Request::Poll(_) | Request::Rehearse { .. });
        (acquires && self.is_mixed.load(Ordering::Relaxed)).then(|| {
            Failure::refused(format!(
                "{address} leads to another server with each connection, and each of them would grant the lock: have it \
                 lead every program to one server"
            ))
        })
    }
}

/// Looks once in a while, for as long as there are connections. While nobody holds or waits for a lock, it asks nothing.
pub(super) async fn look_after(connections: Weak<Connections>, every: Duration) {
    let mut check = AddressCheck::default();
    loop {
        let Some(host) = connections.upgrade().map(|connections| connections.host.clone()) else { return };
        host.sleep(every).await;
        let Some(connections) = connections.upgrade() else { return };
        if connections.subscription.is_needed() {
            connections.look(&mut check).await;
        }
    }
}

impl Connections {
    async fn look(&self, check: &mut AddressCheck) {
        let ours = self.lead_to().await;
        if ours.is_empty() {
            // What does not answer leads nowhere, and others see to it.
            return;
        }
        check.begin(ours.iter().map(|(_, _, run_id)| run_id.clone()));
        let finding = loop {
            let Some(info) = self.keeper.fresh_info(self.host.clone()).await else { return };
            let Some(run_id) = info::identity(&info).run_id else { return };
            if let Some(finding) = check.found(&run_id) {
                break finding;
            }
        };
        let is_mixed = finding == Finding::Mixed;
        let was_mixed = self.whereabouts.is_mixed.swap(is_mixed, Ordering::Relaxed);
        if let Finding::Moved(run_id) = finding {
            // What the server that is left answers from now on is not heard (rule 7).
            let elsewhere = ours.iter().filter(|(_, _, ours)| *ours != run_id);
            let left = elsewhere.filter(|(connection, link, _)| connection.leave(link)).count();
            // None, if the server was restarted meanwhile.
            if left > 0 {
                self.metrics.note_move();
                foreign::tell(Event::ServerMoved { node: self.address.clone() });
            }
        } else if is_mixed != was_mixed {
            let node = self.address.clone();
            foreign::tell(if is_mixed { Event::ServersMixed { node } } else { Event::NodeAnswers { node } });
        }
    }

    /// Where our own links lead.
    async fn lead_to(&self) -> Vec<(&Connection, Arc<Link>, Box<str>)> {
        let home = self.home.as_ref().map(|(_, home)| home);
        let mut ours = Vec::with_capacity(2);
        for connection in [Some(&self.keeper), home].into_iter().flatten() {
            if let Some((link, info)) = connection.server_info().await {
                ours.extend(info::identity(&info).run_id.map(|run_id| (&**connection, link, run_id)));
            }
        }
        ours
    }
}
