//! The signals that we receive, and that are meant for the command as well.

use std::{io, str::FromStr};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::{self, Signal};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

const FORWARDED: [Signal; 8] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// The signals received since the tool began, and every change of a child.
pub(crate) struct Signals {
    receiver: mpsc::UnboundedReceiver<Signal>,
    before: Before,
}

/// The signals that the main thread blocked before we caught any.
#[derive(Clone, Copy)]
pub(crate) struct Before(SigSet);

impl Signals {
    /// Catches the signals from now on, including those that our parent has blocked, but none that it has ignored
    /// (`nohup`). Call this on the main thread: the masks of other threads do not matter while this one lets the
    /// signals through.
    #[allow(clippy::disallowed_methods, reason = "its tasks are the tool's, and end with it")]
    pub(crate) fn catch() -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let ignored = ignored();
        let blocked = caught()?.thread_swap_mask(SigmaskHow::SIG_UNBLOCK)?;
        for kind in FORWARDED.into_iter().chain([Signal::CHILD]) {
            if ignored & (1 << (kind.as_raw() - 1)) != 0 && kind != Signal::CHILD {
                continue;
            }
            let (mut stream, sender) = (signal(SignalKind::from_raw(kind.as_raw()))?, sender.clone());
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if sender.send(kind).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { receiver, before: Before(blocked) })
    }

    pub(crate) fn before(&self) -> Before {
        self.before
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

impl Before {
    /// Runs `act` with the signal mask that this thread had at first, so that a process started there inherits it.
    pub(crate) fn while_blocked<T>(self, act: impl FnOnce() -> T) -> T {
        let ours = self.0.thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let done = act();
        if let Ok(ours) = ours {
            let _as_it_was = ours.thread_set_mask();
        }
        done
    }
}

/// All signals that we catch.
fn caught() -> io::Result<SigSet> {
    let mut set = SigSet::empty();
    for signal in FORWARDED.into_iter().chain([Signal::CHILD]) {
        set.add(nix::sys::signal::Signal::try_from(signal.as_raw())?);
    }
    Ok(set)
}

/// Blocks TTOU on this thread, and returns the previous mask. A write to the terminal from the background, or a change
/// of it, raises TTOU, which stops the whole process. A thread that blocks TTOU gets none.
pub(crate) fn block_output_stops() -> nix::Result<SigSet> {
    block(nix::sys::signal::Signal::SIGTTOU)
}

/// Blocks TTIN on this thread, and returns the previous mask. A read in the background is an error then.
pub(crate) fn block_input_stops() -> nix::Result<SigSet> {
    block(nix::sys::signal::Signal::SIGTTIN)
}

fn block(signal: nix::sys::signal::Signal) -> nix::Result<SigSet> {
    SigSet::from(signal).thread_swap_mask(SigmaskHow::SIG_BLOCK)
}

/// Runs `act`, which may change our terminal even from its background, without being stopped.
pub(crate) fn unstopped<T>(act: impl FnOnce() -> T) -> T {
    let before = block_output_stops();
    let done = act();
    if let Ok(before) = before {
        let _as_it_was = before.thread_set_mask();
    }
    done
}

/// Stops this process, as the sender of TSTP wants. We send TTIN, because we catch TSTP, and STOP would stop us even if
/// no process could continue us. In that case the system ignores TTIN.
pub(crate) fn stop_here() {
    let _unlikely = process::kill_process(process::getpid(), Signal::TTIN);
}

/// Like [`stop_here`], for our whole process group: a script that started us waits for us in it.
pub(crate) fn stop_all() {
    let _unlikely = process::kill_current_process_group(Signal::TTIN);
}

/// The signals that this process ignores, by their bits, as far as the system reports them.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A signal by its name, with or without `SIG`, or by its number.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let named = nix::sys::signal::Signal::from_str(&format!("SIG{name}")).ok().map(|signal| signal as i32);
    let signal = named.or_else(|| name.parse().ok()).and_then(Signal::from_named_raw);
    signal.ok_or_else(|| format!("{text:?} is no signal: write a name such as TERM, INT or USR1, or a number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_signal_or_refused(text in "(SIG|sig)?[A-Z0-9+-]{0,12}|.*") {
            let _either = parse(&text);
        }
    }

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        for (text, signal) in [("SIGUSR1", Signal::USR1), ("WINCH", Signal::WINCH), ("sigpipe", Signal::PIPE)] {
            assert_eq!(parse(text), Ok(signal), "{text}");
        }
        for text in ["", "SIG", "SIGSIGTERM", "TERMINATE", "0", "-1", "9999"] {
            assert!(parse(text).is_err_and(|error| error.contains("is no signal")), "{text}");
        }
    }
}
