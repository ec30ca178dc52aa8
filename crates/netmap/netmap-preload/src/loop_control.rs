//! Start and end of the loop that synchronises a port's rings.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringpass_ipc::EventNotifier;
use rustix::io::Errno;

use crate::refusal::Refusal;

/// Whether a port's loop runs, and is to end.
#[derive(Default)]
pub struct LoopControl {
    state: Mutex<State>,
    ended: Condvar,
    /// Copy of `State::stop`, for the loop.
    stop: AtomicBool,
    wake: Mutex<Option<EventNotifier>>,
}

#[derive(Clone, Copy, Default)]
struct State {
    running: bool,
    stop: bool,
}

/// Time within which a loop ends once it is to: much more than it needs.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

impl LoopControl {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) -> MutexGuard<'_, Option<EventNotifier>> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a loop runs.
    pub fn is_running(&self) -> bool {
        self.state().running
    }

    /// Ends the loop, and waits until it has ended. As in netmap, a loop that is started later ends at once if there is none now.
    pub fn stop(&self) -> Result<(), Refusal> {
        let mut state = self.state();
        state.stop = true;
        self.stop.store(true, Relaxed);
        self.wake().iter().for_each(EventNotifier::notify);
        let still = |state: &mut State| state.running;
        state = self.ended.wait_timeout_while(state, STOP_TIMEOUT, still).unwrap_or_else(PoisonError::into_inner).0;
        if state.running { Err(Refusal::new(Errno::TIMEDOUT, "the loop does not end")) } else { Ok(()) }
    }

    /// Whether the loop is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Begins a loop, which ends when the result is dropped; [`stop`](Self::stop) signals `wake`.
    pub fn begin(&self, wake: EventNotifier) -> Result<Running<'_>, Refusal> {
        let mut state = self.state();
        if state.running {
            return Err(Refusal::new(Errno::BUSY, "a loop runs already"));
        }
        state.running = true;
        *self.wake() = Some(wake);
        Ok(Running(self))
    }
}

/// Marks that a loop runs. When it is dropped, the loop has ended.
pub struct Running<'a>(&'a LoopControl);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.wake() = None;
        *self.0.state() = State::default();
        self.0.stop.store(false, Relaxed);
        self.0.ended.notify_all();
    }
}
