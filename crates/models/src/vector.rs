//! Interrupt vectors for a driver in this process.

use ringpass_peer::{Signal, Waiter, prepare_signals};
use ringpass_port::Error;

/// Makes an eventfd for each of `count` vectors and hands what signals it to `set`.
pub(crate) fn vectors(count: usize, mut set: impl FnMut(usize, Signal)) -> Result<Vec<Waiter>, Error> {
    let failed = |source| Error::Os { what: "an eventfd for an interrupt".into(), source };
    prepare_signals().map_err(failed)?;
    let make = |vector| {
        let waiter = Waiter::new().map_err(failed)?;
        set(vector, waiter.signal());
        Ok(waiter)
    };
    (0..count).map(make).collect()
}
