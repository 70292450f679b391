//! Bugs on purpose, to show that the checks find them. The drivers of the model and of the simulation play some of
//! them: they mutate the traffic between a client and its nodes. For others the soak builds the library with a patch of
//! `mutations/`.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident: $name:literal $(, $patch:literal)?;)+) => {
        /// A bug that a check has to find.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum SeededBug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl SeededBug {
            /// All bugs.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$bug),+];

            fn said(self) -> (&'static str, &'static [&'static str]) {
                match self {
                    $(Self::$bug => ($name, &[$($patch)?]),)+
                }
            }
        }
    };
}

// Each bug with its name, and with its patch if the soak plays it.
bugs! {
    /// A lease is valid for its whole TTL, with nothing off for drift.
    NoDrift: "no-drift", "rule-01-drift";
    /// A deadline counts from the reply.
    DeadlineFromReply: "deadline-from-reply", "rule-01-first-send";
    /// A client sends an acquire again, and counts its deadline from there.
    DeadlineFromRetry: "deadline-from-retry";
    /// An attempt wins with the largest fence that a majority issued, raised nowhere.
    NoSecondPhase: "no-second-phase", "rule-10-second-phase";
    /// A grant that comes after its attempt has failed stays on the node.
    LateGrantStays: "late-grant-stays";
    /// A release deletes the key of any holder.
    ReleaseUnchecked: "release-unchecked", "rule-08-compare-lua";
    /// A renewal creates a missing key.
    RenewalRecreates: "renewal-recreates", "rule-07-creates-lua";
    /// A lease whose key was deleted continues.
    DeletionIgnored: "deletion-ignored", "rule-07-deletion-ignored";
    /// One node's answer counts for another one too.
    OneAnswersForAnother: "one-answers-for-another", "quorum-one-for-another";
    /// A node votes as soon as it is up.
    AmnesiacVotes: "amnesiac-votes";
    /// A node takes a repair as soon as it is up.
    RepairUnchecked: "repair-unchecked", "quorum-repair-uptime-lua";
    /// A repair overwrites another holder's key.
    RepairOverwrites: "repair-overwrites";
    /// The restart delay is the TTL rounded up, without the second more.
    DelayTooShort: "delay-too-short";
    /// Clocks gain and lose 1 % each, and a TTL allows for 1 % between two of them.
    ClocksTooFast: "clocks-too-fast";
    /// A raise leaves the fence in the lock's value as it was.
    RaiseLeavesValue: "raise-leaves-value";
    /// A key is its token's only if the fence in its value is the one that the client knows.
    WholeValueCompared: "whole-value-compared";
    /// An acquire that is replayed is granted with another fence.
    ReplayDrawsAnew: "replay-draws-anew";
    /// A request that has waited for the pace gets no flight.
    FlightNotStarted: "flight-not-started";
    /// A batch is sent a second time with requests that have had their answer.
    SecondSendingOfAll: "second-sending-of-all";
    /// An error of a whole batch is reported to each of its callers.
    ErrorIsEverybodys: "error-is-everybodys";
    /// A batch without an answer is asked for again, each request alone.
    SilenceIsNobodys: "silence-is-nobodys";
    /// The replies of a batch go to its callers in another order.
    RepliesOutOfOrder: "replies-out-of-order";
    /// A request that is answered with "alone" is not asked again.
    AloneIsTheEnd: "alone-is-the-end";
    /// A release that knows no fence is batched with others.
    UndosTravel: "undos-travel";
    /// An acquire that is taken back while it waits stays in the queue.
    NothingWithdrawn: "nothing-withdrawn";
    /// With votes too, only an undo takes a waiting acquire out of the queue.
    OnlyUndosWithdraw: "only-undos-withdraw";
    /// A late vote that may have come after the release is not taken back.
    LateVoteStays: "late-vote-stays";
    /// A release that no caller waits for, or that has no answer, counts as sent.
    ReleaseTakenForSent: "release-taken-for-sent";
    /// A batch acquires before it releases.
    AcquiresFirst: "acquires-first";
    /// A flight ends while requests wait, and no other one follows.
    FlightNotFollowed: "flight-not-followed";
    /// A lone request that is dropped is counted as a flight for ever.
    DroppedFlightStays: "dropped-flight-stays";
    /// A flight that ends with its runtime notifies no caller.
    CrashUnnoticed: "crash-unnoticed";
    /// The sweeper runs no earlier than it had planned.
    SweeperNotWoken: "sweeper-not-woken";
    /// The sweeper runs once.
    SweeperStops: "sweeper-stops";
    /// A flight that finds no connection in time also answers requests that have just come.
    AllTurnedAway: "all-turned-away";
    /// A batch that lands also answers requests that have had their answer.
    AnsweredAgain: "answered-again";
    /// Only the first request of a batch that was sent twice is reported as overtaken.
    OvertakenIsTheFirsts: "overtaken-is-the-firsts";
    /// A batch has one request more than it may.
    BatchTooLarge: "batch-too-large";
    /// A full batch leaves requests behind, and the sweeper is not notified.
    LeftBehind: "left-behind";
    /// Answers of a primary that was replaced count, though the new one is known.
    ReplacedCounts: "replaced-counts";
    /// The view that was heard last decides the owner of a slot.
    TopologyGoesBack: "topology-goes-back";
    /// Others are not asked whether a primary still is one.
    NotCrossChecked: "not-cross-checked";
    /// An acquire in steps is granted without its third step.
    StepUnconfirmed: "step-unconfirmed";
    /// An acquire in steps has its fence issued before it takes the lock.
    FloorBeforeTake: "floor-before-take";
    /// A `WAIT` confirms an answer that came after it was sent.
    WaitConfirmsLater: "wait-confirms-later";
    /// A `WAIT` is sent on another link than that of the answers.
    WaitOnAnotherLink: "wait-on-another-link";
    /// A renewal counts though replicas have not confirmed it.
    RenewalUnreplicated: "renewal-unreplicated";
    /// A loss deletes the key that is to outlive it.
    LossDeletes: "loss-deletes";
    /// A renewal sends the TTL in the place of the life.
    LifeForgotten: "life-forgotten";
    /// A release deletes the key before the end of the interval in which the lock is acquired once.
    ReleaseFrees: "release-frees";
    /// An adoption takes the lock from any holder.
    AdoptionUnchecked: "adoption-unchecked";
    /// An heir has the fence of its giver.
    HeirKeepsFence: "heir-keeps-fence";
    /// The giver keeps believing once its ticket is there.
    GiverBelieves: "giver-believes";
    /// A timer reports progress in the place of the work.
    TimerReports: "timer-reports";
    /// A check gives the key of stalled work what is left of its lease.
    CheckShortens: "check-shortens";
    /// An observer is not notified that its knowledge has expired.
    ObserverNeverUnsure: "observer-never-unsure";
    /// An observer looks again while a look is under way, and takes the answers as they come.
    OldLookOverrides: "old-look-overrides";
    /// An acquire that is replayed writes nothing, so that a `WAIT` after it confirms only the writes before.
    ReplayWritesNothing: "replay-writes-nothing";
    /// The limit of a share is not checked.
    LimitUnchecked: "limit-unchecked", "share-grant-lua";
    /// A phase begins with the sharers of an earlier one.
    PhaseKeepsPlaces: "phase-keeps-places";
    /// A renewal brings back a share that has expired.
    RenewalBringsBack: "renewal-brings-back";
    /// The key of a shared lock lives for the TTL of its first sharer.
    KeyEndsEarly: "key-ends-early", "share-outlives-lua";
    /// A newcomer shares a lock at once, though another waiter is ahead.
    NewcomerOvertakes: "newcomer-overtakes";
    /// A holder that continues as a reader has the fence that it had alone.
    DowngradeKeepsFence: "downgrade-keeps-fence", "share-downgrade-lua";
}

impl SeededBug {
    /// The name of the bug in scripts and pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.said().0
    }

    /// The patch of `mutations/` that puts it into the library, if the soak plays it.
    #[must_use]
    pub fn patch(self) -> Option<&'static str> {
        self.said().1.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::SeededBug;

    #[test]
    fn each_bug_has_a_name_of_its_own() {
        let names: BTreeSet<_> = SeededBug::ALL.iter().map(|bug| bug.name()).collect();
        assert_eq!(names.len(), SeededBug::ALL.len());
    }

    /// `soak: NAME` in the header of a patch, and the patch in this list.
    #[test]
    fn patches_and_bugs_name_each_other() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mutations");
        let mut said = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let patch = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let bug = text.lines().find_map(|line| line.strip_prefix("soak: "));
            said.extend(bug.map(|bug| (bug.to_owned(), patch)));
        }
        let listed = SeededBug::ALL.iter().filter_map(|bug| Some((bug.name().to_owned(), bug.patch()?.to_owned())));
        assert_eq!(said, listed.collect());
    }
}
