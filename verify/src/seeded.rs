//! Bugs on purpose, to see that the checks find them. The drivers of the model and of the simulation play some: they
//! mutate what passes between a client and its nodes. For others the soak builds the library with a patch of
//! `mutations/`.

/// A bug that a check has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeededBug {
    /// A lease is valid for its whole TTL, with nothing off for drift.
    NoDrift,
    /// A deadline counts from the reply.
    DeadlineFromReply,
    /// A client sends an acquire again, and counts its deadline from there.
    DeadlineFromRetry,
    /// An attempt wins with the largest fence that a majority issued, raised nowhere.
    NoSecondPhase,
    /// A grant that comes after its attempt has failed stays on the node.
    LateGrantStays,
    /// A release deletes whatever is there.
    ReleaseUnchecked,
    /// A renewal creates a missing key.
    RenewalRecreates,
    /// A lease whose key was deleted goes on.
    DeletionIgnored,
    /// What one node answers counts for another one too.
    OneAnswersForAnother,
    /// A node votes as soon as it is up.
    AmnesiacVotes,
    /// A node takes a repair as soon as it is up.
    RepairUnchecked,
    /// A repair overwrites another holder's key.
    RepairOverwrites,
    /// The restart delay is the TTL rounded up, without the second more.
    DelayTooShort,
    /// Clocks gain and lose 1 % each, and a TTL allows for 1 % between two of them.
    ClocksTooFast,
    /// A raise leaves the fence in the lock's value as it was.
    RaiseLeavesValue,
    /// A key is its token's only if the fence in its value is the one that the client knows.
    WholeValueCompared,
    /// An acquire that is replayed is granted with another fence.
    ReplayDrawsAnew,
    /// A request that has waited for the pace has no flight started for it.
    FlightNotStarted,
    /// A batch is sent a second time with requests that have had their answer.
    SecondSendingOfAll,
    /// An error of a whole batch is told to each of its callers.
    ErrorIsEverybodys,
    /// A batch without an answer is asked for again, each request alone.
    SilenceIsNobodys,
    /// The replies of a batch go to its callers in another order.
    RepliesOutOfOrder,
    /// A request that is answered with "alone" is not asked again.
    AloneIsTheEnd,
    /// A release that knows no fence travels with others.
    UndosTravel,
    /// An acquire that is taken back while it waits stays in the queue.
    NothingWithdrawn,
    /// Of votes too, only an undo takes a waiting acquire out of the queue.
    OnlyUndosWithdraw,
    /// A late vote that may have come after the release is not taken back.
    LateVoteStays,
    /// A release that nobody waits for, or that has no answer, counts as sent.
    ReleaseTakenForSent,
    /// A batch acquires before it releases.
    AcquiresFirst,
    /// A flight ends while requests wait, and no other one follows.
    FlightNotFollowed,
    /// A lone request that is dropped is counted as a flight for ever.
    DroppedFlightStays,
    /// A flight that ends with its runtime tells nobody.
    CrashUnnoticed,
    /// The sweeper looks no earlier than it had planned.
    SweeperNotWoken,
    /// The sweeper looks once.
    SweeperStops,
    /// A flight that finds no connection in time answers also those who have just come.
    AllTurnedAway,
    /// A batch that comes down answers also those who have had their answer.
    AnsweredAgain,
    /// Only the first request of a batch that was sent twice is told that it was overtaken.
    OvertakenIsTheFirsts,
    /// A batch has one request more than it may.
    BatchTooLarge,
    /// A full batch leaves requests behind, and the sweeper does not hear of them.
    LeftBehind,
    /// Answers of a primary that was replaced count, though the new one is known.
    ReplacedCounts,
    /// The view that was heard last decides who has a slot.
    TopologyGoesBack,
    /// Nobody else is asked whether a primary still is one.
    NotCrossChecked,
    /// An acquire in steps is granted without its third.
    StepUnconfirmed,
    /// An acquire in steps has its fence issued before it takes the lock.
    FloorBeforeTake,
    /// A `WAIT` confirms what was answered after it was sent.
    WaitConfirmsLater,
    /// A `WAIT` is sent on another link than that of the answers.
    WaitOnAnotherLink,
    /// A renewal counts though replicas have not confirmed it.
    RenewalUnreplicated,
    /// A loss deletes the key that is to outlive it.
    LossDeletes,
    /// A renewal sends the TTL in the place of the life.
    LifeForgotten,
    /// A release deletes the key before the interval is over in which the lock is acquired once.
    ReleaseFrees,
    /// An adoption takes the lock from whoever has it.
    AdoptionUnchecked,
    /// An heir has the fence of its giver.
    HeirKeepsFence,
    /// The giver goes on believing once its ticket is there.
    GiverBelieves,
    /// An observer is not told that what was known has run out.
    ObserverNeverUnsure,
    /// An observer looks again while a look is under way, and takes their answers as they come.
    OldLookOverrides,
    /// An acquire that is replayed writes nothing, so that a `WAIT` after it speaks for what was written before.
    ReplayWritesNothing,
    /// The limit of a share is not looked at.
    LimitUnchecked,
    /// A phase begins with those of an earlier one.
    PhaseKeepsPlaces,
    /// A renewal brings back a share that is over.
    RenewalBringsBack,
    /// The key of a shared lock lives for the TTL of the first who shares it.
    KeyEndsEarly,
    /// A newcomer shares a lock at once, though somebody waits for it.
    NewcomerOvertakes,
    /// Who goes on as a reader has the fence that it had alone.
    DowngradeKeepsFence,
}

impl SeededBug {
    /// Every one.
    pub const ALL: [Self; 62] = [
        Self::NoDrift,
        Self::DeadlineFromReply,
        Self::DeadlineFromRetry,
        Self::NoSecondPhase,
        Self::LateGrantStays,
        Self::ReleaseUnchecked,
        Self::RenewalRecreates,
        Self::DeletionIgnored,
        Self::OneAnswersForAnother,
        Self::AmnesiacVotes,
        Self::RepairUnchecked,
        Self::RepairOverwrites,
        Self::DelayTooShort,
        Self::ClocksTooFast,
        Self::RaiseLeavesValue,
        Self::WholeValueCompared,
        Self::ReplayDrawsAnew,
        Self::FlightNotStarted,
        Self::SecondSendingOfAll,
        Self::ErrorIsEverybodys,
        Self::SilenceIsNobodys,
        Self::RepliesOutOfOrder,
        Self::AloneIsTheEnd,
        Self::UndosTravel,
        Self::NothingWithdrawn,
        Self::OnlyUndosWithdraw,
        Self::LateVoteStays,
        Self::ReleaseTakenForSent,
        Self::AcquiresFirst,
        Self::FlightNotFollowed,
        Self::DroppedFlightStays,
        Self::CrashUnnoticed,
        Self::SweeperNotWoken,
        Self::SweeperStops,
        Self::AllTurnedAway,
        Self::AnsweredAgain,
        Self::OvertakenIsTheFirsts,
        Self::BatchTooLarge,
        Self::LeftBehind,
        Self::ReplacedCounts,
        Self::TopologyGoesBack,
        Self::NotCrossChecked,
        Self::StepUnconfirmed,
        Self::FloorBeforeTake,
        Self::WaitConfirmsLater,
        Self::WaitOnAnotherLink,
        Self::RenewalUnreplicated,
        Self::LossDeletes,
        Self::LifeForgotten,
        Self::ReleaseFrees,
        Self::AdoptionUnchecked,
        Self::HeirKeepsFence,
        Self::GiverBelieves,
        Self::ObserverNeverUnsure,
        Self::OldLookOverrides,
        Self::ReplayWritesNothing,
        Self::LimitUnchecked,
        Self::PhaseKeepsPlaces,
        Self::RenewalBringsBack,
        Self::KeyEndsEarly,
        Self::NewcomerOvertakes,
        Self::DowngradeKeepsFence,
    ];

    /// What scripts and pages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoDrift => "no-drift",
            Self::DeadlineFromReply => "deadline-from-reply",
            Self::DeadlineFromRetry => "deadline-from-retry",
            Self::NoSecondPhase => "no-second-phase",
            Self::LateGrantStays => "late-grant-stays",
            Self::ReleaseUnchecked => "release-unchecked",
            Self::RenewalRecreates => "renewal-recreates",
            Self::DeletionIgnored => "deletion-ignored",
            Self::OneAnswersForAnother => "one-answers-for-another",
            Self::AmnesiacVotes => "amnesiac-votes",
            Self::RepairUnchecked => "repair-unchecked",
            Self::RepairOverwrites => "repair-overwrites",
            Self::DelayTooShort => "delay-too-short",
            Self::ClocksTooFast => "clocks-too-fast",
            Self::RaiseLeavesValue => "raise-leaves-value",
            Self::WholeValueCompared => "whole-value-compared",
            Self::ReplayDrawsAnew => "replay-draws-anew",
            Self::FlightNotStarted => "flight-not-started",
            Self::SecondSendingOfAll => "second-sending-of-all",
            Self::ErrorIsEverybodys => "error-is-everybodys",
            Self::SilenceIsNobodys => "silence-is-nobodys",
            Self::RepliesOutOfOrder => "replies-out-of-order",
            Self::AloneIsTheEnd => "alone-is-the-end",
            Self::UndosTravel => "undos-travel",
            Self::NothingWithdrawn => "nothing-withdrawn",
            Self::OnlyUndosWithdraw => "only-undos-withdraw",
            Self::LateVoteStays => "late-vote-stays",
            Self::ReleaseTakenForSent => "release-taken-for-sent",
            Self::AcquiresFirst => "acquires-first",
            Self::FlightNotFollowed => "flight-not-followed",
            Self::DroppedFlightStays => "dropped-flight-stays",
            Self::CrashUnnoticed => "crash-unnoticed",
            Self::SweeperNotWoken => "sweeper-not-woken",
            Self::SweeperStops => "sweeper-stops",
            Self::AllTurnedAway => "all-turned-away",
            Self::AnsweredAgain => "answered-again",
            Self::OvertakenIsTheFirsts => "overtaken-is-the-firsts",
            Self::BatchTooLarge => "batch-too-large",
            Self::LeftBehind => "left-behind",
            Self::ReplacedCounts => "replaced-counts",
            Self::TopologyGoesBack => "topology-goes-back",
            Self::NotCrossChecked => "not-cross-checked",
            Self::StepUnconfirmed => "step-unconfirmed",
            Self::FloorBeforeTake => "floor-before-take",
            Self::WaitConfirmsLater => "wait-confirms-later",
            Self::WaitOnAnotherLink => "wait-on-another-link",
            Self::RenewalUnreplicated => "renewal-unreplicated",
            Self::LossDeletes => "loss-deletes",
            Self::LifeForgotten => "life-forgotten",
            Self::ReleaseFrees => "release-frees",
            Self::AdoptionUnchecked => "adoption-unchecked",
            Self::HeirKeepsFence => "heir-keeps-fence",
            Self::GiverBelieves => "giver-believes",
            Self::ObserverNeverUnsure => "observer-never-unsure",
            Self::OldLookOverrides => "old-look-overrides",
            Self::ReplayWritesNothing => "replay-writes-nothing",
            Self::LimitUnchecked => "limit-unchecked",
            Self::PhaseKeepsPlaces => "phase-keeps-places",
            Self::RenewalBringsBack => "renewal-brings-back",
            Self::KeyEndsEarly => "key-ends-early",
            Self::NewcomerOvertakes => "newcomer-overtakes",
            Self::DowngradeKeepsFence => "downgrade-keeps-fence",
        }
    }

    /// The patch of `mutations/` that puts it into the library, if the soak plays it.
    #[must_use]
    pub fn patch(self) -> Option<&'static str> {
        match self {
            Self::NoDrift => Some("rule-01-drift"),
            Self::DeadlineFromReply => Some("rule-01-first-send"),
            Self::NoSecondPhase => Some("rule-10-second-phase"),
            Self::ReleaseUnchecked => Some("rule-08-compare-lua"),
            Self::RenewalRecreates => Some("rule-07-creates-lua"),
            Self::DeletionIgnored => Some("rule-07-deletion-ignored"),
            Self::RepairUnchecked => Some("quorum-repair-uptime-lua"),
            Self::OneAnswersForAnother => Some("quorum-one-for-another"),
            Self::LimitUnchecked => Some("share-grant-lua"),
            Self::KeyEndsEarly => Some("share-outlives-lua"),
            Self::DowngradeKeepsFence => Some("share-downgrade-lua"),
            Self::DeadlineFromRetry
            | Self::LateGrantStays
            | Self::AmnesiacVotes
            | Self::RepairOverwrites
            | Self::DelayTooShort
            | Self::ClocksTooFast
            | Self::RaiseLeavesValue
            | Self::WholeValueCompared
            | Self::ReplayDrawsAnew
            | Self::FlightNotStarted
            | Self::SecondSendingOfAll
            | Self::ErrorIsEverybodys
            | Self::SilenceIsNobodys
            | Self::RepliesOutOfOrder
            | Self::AloneIsTheEnd
            | Self::UndosTravel
            | Self::NothingWithdrawn
            | Self::OnlyUndosWithdraw
            | Self::LateVoteStays
            | Self::ReleaseTakenForSent
            | Self::AcquiresFirst
            | Self::FlightNotFollowed
            | Self::DroppedFlightStays
            | Self::CrashUnnoticed
            | Self::SweeperNotWoken
            | Self::SweeperStops
            | Self::AllTurnedAway
            | Self::AnsweredAgain
            | Self::OvertakenIsTheFirsts
            | Self::BatchTooLarge
            | Self::LeftBehind
            | Self::ReplacedCounts
            | Self::TopologyGoesBack
            | Self::NotCrossChecked
            | Self::StepUnconfirmed
            | Self::FloorBeforeTake
            | Self::WaitConfirmsLater
            | Self::WaitOnAnotherLink
            | Self::RenewalUnreplicated
            | Self::LossDeletes
            | Self::LifeForgotten
            | Self::ReleaseFrees
            | Self::AdoptionUnchecked
            | Self::HeirKeepsFence
            | Self::GiverBelieves
            | Self::ObserverNeverUnsure
            | Self::OldLookOverrides
            | Self::ReplayWritesNothing
            | Self::PhaseKeepsPlaces
            | Self::RenewalBringsBack
            | Self::NewcomerOvertakes => None,
        }
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
