//! The back-end as the driver's device. Status and configuration are played here: the protocol gives the back-end rings
//! and memory, and no more.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use ringpass_peer::Signal;
use ringpass_port::Error;
use ringpass_virtio::layout::MAX_SIZE;
use ringpass_virtio_net::transport::{HandOver, Notify, Pairs, Setup, Transport};

use crate::card::{Card, event};
use crate::session::Ring;
use ringpass_vhost_user::SessionError;

/// Of the status: the driver is ready (VIRTIO 1.3, 2.1).
const DRIVER_OK: u8 = 4;

/// A back-end, whichever it is just now. Ends the control thread when dropped.
pub(crate) struct Backend {
    card: Arc<Card>,
    status: u8,
}

impl Backend {
    pub(crate) fn new(card: &Arc<Card>) -> Self {
        Self { card: card.clone(), status: 0 }
    }

    /// The configuration (VIRTIO 1.3, 5.1.4): MAC address, status, pairs of queues, MTU.
    fn config(&self) -> [u8; 12] {
        let mut config = [0; 12];
        config[..6].copy_from_slice(&self.card.mac.unwrap_or_default().0);
        config[6] = self.card.up.load(Relaxed).into();
        config[8..10].copy_from_slice(&self.card.pairs.to_le_bytes());
        config[10..].copy_from_slice(&self.card.mtu.to_le_bytes());
        config
    }
}

impl Transport for Backend {
    fn description(&self) -> String {
        "played by a back-end".into()
    }

    fn is_legacy(&self) -> bool {
        false
    }

    /// A back-end that has stopped its rings, or has ended, writes to them no more. Of one that does not answer nothing is
    /// known: what it was given stays given.
    fn reset(&mut self) -> Result<(), Error> {
        self.status = 0;
        self.card.up.store(false, Relaxed);
        let mut state = self.card.state();
        let rings = std::mem::take(&mut state.plan.rings);
        if rings.is_empty() {
            return Ok(());
        }
        self.card.control.stop();
        let stopped = state.session.take().map_or(Ok(()), |mut session| session.stop(&rings));
        match stopped {
            Ok(()) | Err(SessionError::Closed) if !state.abandoned => Ok(()),
            Ok(()) | Err(SessionError::Closed) => {
                Err(Error::Other("a back-end that was given up may still use the rings".into()))
            }
            Err(error) => Err(Error::Other(error.to_string())),
        }
    }

    fn status(&mut self) -> u8 {
        self.status
    }

    fn set_status(&mut self, status: u8) {
        let before = std::mem::replace(&mut self.status, status);
        if status & !before & DRIVER_OK != 0 {
            self.card.start();
        }
    }

    fn features(&mut self) -> u64 {
        self.card.offered
    }

    fn accept(&mut self, features: u64) {
        self.card.state().plan.features = features;
    }

    fn queue_size(&mut self, queue: u16) -> u16 {
        if queue < 2 * self.card.pairs { MAX_SIZE } else { 0 }
    }

    // Nothing here is unsafe: the back-end is told of the addresses later.
    #[allow(unsafe_code, reason = "the trait's word")]
    unsafe fn start_queue(&mut self, queue: u16, setup: &Setup) -> Result<Box<dyn Notify>, Error> {
        let kick = event()?;
        let other = |error: String| Error::Other(format!("the kick of queue {queue}: {error}"));
        let signal = Signal::new(kick.try_clone().map_err(|error| other(error.to_string()))?);
        let signal = signal.map_err(|error| other(error.to_string()))?;
        self.card.state().plan.rings.push(Ring { number: queue, setup: *setup, kick, queue: None });
        Ok(Box::new(Kick(signal)))
    }

    fn reset_queue(&mut self, queue: u16) -> Result<(), Error> {
        Err(Error::Other(format!("queue {queue} cannot be reset alone")))
    }

    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let config = self.config();
        let end = offset.checked_add(out.len());
        let bytes = end.and_then(|end| config.get(offset..end));
        let beyond = || Error::Other(format!("the configuration has {} bytes", config.len()));
        out.copy_from_slice(bytes.ok_or_else(beyond)?);
        Ok(())
    }

    fn write_config(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        Err(Error::Other("a back-end has no configuration that could be written".into()))
    }

    fn pairs(&self) -> Pairs {
        Pairs::ByTransport
    }

    fn outlives_device(&self) -> bool {
        true
    }

    fn adopt(&mut self, queue: u16, ring: Weak<dyn HandOver>) {
        let mut state = self.card.state();
        if let Some(known) = state.plan.rings.iter_mut().find(|known| known.number == queue) {
            known.queue = Some(ring);
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.card.control.end();
    }
}

/// A queue's kick. The eventfd is shared with a back-end that could make a write to it wait; a signal does not.
struct Kick(Signal);

impl Notify for Kick {
    fn notify(&self, _: u16) {
        self.0.raise();
    }
}
