//! The back-end as the driver's device. Status and configuration are emulated here, because the protocol gives a
//! back-end only rings and memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use ringpass_ipc::EventNotifier;
use ringpass_port::Error;
use ringpass_virtio::layout::MAX_SIZE;
use ringpass_virtio_net::transport::{HandOver, Notify, Pairs, QueueSetup, Transport};

use crate::device::UserDevice;
use crate::event::event;
use crate::session::Ring;
use ringpass_vhost_user::SessionError;

/// Status bit: the driver is ready (VIRTIO 1.3, 2.1).
const DRIVER_OK: u8 = 4;

/// The current back-end, whichever it is. Ends the reconnect thread when dropped.
pub(crate) struct Backend {
    device: Arc<UserDevice>,
    status: u8,
}

impl Backend {
    pub(crate) fn new(device: &Arc<UserDevice>) -> Self {
        Self { device: device.clone(), status: 0 }
    }

    /// Returns the device configuration (VIRTIO 1.3, 5.1.4): MAC address, status, queue pairs, MTU.
    fn config(&self) -> [u8; 12] {
        let mut config = [0; 12];
        config[..6].copy_from_slice(&self.device.mac.unwrap_or_default().0);
        config[6] = self.device.up.load(Relaxed).into();
        config[8..10].copy_from_slice(&self.device.pairs.to_le_bytes());
        config[10..].copy_from_slice(&self.device.mtu.to_le_bytes());
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

    /// Stops all rings. A back-end that has stopped its rings or closed the connection no longer writes to them. If
    /// it does not answer, this returns an error: the back-end may keep using its memory.
    fn reset(&mut self) -> Result<(), Error> {
        self.status = 0;
        self.device.up.store(false, Relaxed);
        let mut state = self.device.state();
        let rings = std::mem::take(&mut state.backend_setup.rings);
        if rings.is_empty() {
            return Ok(());
        }
        self.device.reconnect_thread.stop();
        let stopped = state.session.take().map_or(Ok(()), |mut session| session.stop(&rings));
        match stopped {
            Ok(()) | Err(SessionError::Closed) if !state.abandoned => Ok(()),
            Ok(()) | Err(SessionError::Closed) => {
                Err(Error::Fault("a back-end that was given up may still use the rings".into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn status(&mut self) -> u8 {
        self.status
    }

    fn set_status(&mut self, status: u8) {
        let before = std::mem::replace(&mut self.status, status);
        if status & !before & DRIVER_OK != 0 {
            self.device.start();
        }
    }

    fn features(&mut self) -> u64 {
        self.device.offered
    }

    fn accept(&mut self, features: u64) {
        self.device.state().backend_setup.features = features;
    }

    fn queue_size(&mut self, queue: u16) -> u16 {
        if queue < 2 * self.device.pairs { MAX_SIZE } else { 0 }
    }

    // No memory is accessed here: the addresses are passed to the back-end later, so the body needs no unsafe code.
    #[allow(unsafe_code, reason = "the trait's method is unsafe")]
    unsafe fn start_queue(&mut self, queue: u16, setup: &QueueSetup) -> Result<Box<dyn Notify>, Error> {
        let kick = event()?;
        let what = || format!("the kick of queue {queue}");
        let signal = EventNotifier::new(kick.try_clone().map_err(|error| Error::os(what(), error))?);
        let signal = signal.map_err(|error| Error::Fault(format!("{}: {error}", what())))?;
        self.device.state().backend_setup.rings.push(Ring { number: queue, setup: *setup, kick, queue: None });
        Ok(Box::new(Kick(signal)))
    }

    fn reset_queue(&mut self, queue: u16) -> Result<(), Error> {
        Err(Error::Unsupported(format!("queue {queue} cannot be reset alone")))
    }

    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let config = self.config();
        let end = offset.checked_add(out.len());
        let bytes = end.and_then(|end| config.get(offset..end));
        let beyond = || Error::Unsupported(format!("the configuration has {} bytes", config.len()));
        out.copy_from_slice(bytes.ok_or_else(beyond)?);
        Ok(())
    }

    fn write_config(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        Err(Error::Unsupported("a back-end has no configuration that could be written".into()))
    }

    fn pairs(&self) -> Pairs {
        Pairs::ByTransport
    }

    fn outlives_device(&self) -> bool {
        true
    }

    fn adopt(&mut self, queue: u16, ring: Weak<dyn HandOver>) {
        let mut state = self.device.state();
        if let Some(known) = state.backend_setup.rings.iter_mut().find(|known| known.number == queue) {
            known.queue = Some(ring);
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.device.reconnect_thread.end();
    }
}

/// Kick of a queue. The back-end shares the eventfd and could make a plain write block; an `EventNotifier` never
/// blocks.
struct Kick(EventNotifier);

impl Notify for Kick {
    fn notify(&self, _: u16) {
        self.0.notify();
    }
}
