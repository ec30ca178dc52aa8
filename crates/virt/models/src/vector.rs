//! Interrupt vectors for a driver in the same process.

use ringpass_ipc::{EventNotifier, EventWaiter, prepare_notifiers};
use ringpass_port::Error;

/// Creates an eventfd for each of `count` vectors and passes its notifier to `set`. Returns the waiting ends.
pub(crate) fn vectors(count: usize, mut set: impl FnMut(usize, EventNotifier)) -> Result<Vec<EventWaiter>, Error> {
    let failed = |source| Error::os("an eventfd for an interrupt", source);
    prepare_notifiers().map_err(failed)?;
    let make = |vector| {
        let waiter = EventWaiter::new().map_err(failed)?;
        set(vector, waiter.signal());
        Ok(waiter)
    };
    (0..count).map(make).collect()
}
