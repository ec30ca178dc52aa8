//! The thread that notices the end of a back-end and connects to the next one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ringpass_vhost_user::SessionError;
use tracing::warn;

use crate::device::UserDevice;
use crate::session::Failure;
use crate::source::NoBackend;

/// First and longest pause between connection attempts.
const RECONNECT_BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Starts the thread, unless it is running or has been stopped.
pub(crate) fn start(device: &Arc<UserDevice>) {
    let watched = device.clone();
    device.reconnect_thread.start("virtio-user", move || watch(&watched));
}

fn watch(device: &UserDevice) {
    let (mut backoff, mut told) = (RECONNECT_BACKOFF[0], String::new());
    while !device.reconnect_thread.stopped() && device.failure().is_none() {
        if let Some(socket) = device.socket() {
            device.reconnect_thread.wait(Some(socket), None);
            device.check();
            (backoff, told) = (RECONNECT_BACKOFF[0], String::new());
            continue;
        }
        let trouble = match device.source.try_connect() {
            Ok(Some(socket)) => match device.reconnect(socket) {
                Ok(()) => continue,
                Err(Failure::Permanent(why)) => {
                    device.fail(why);
                    continue;
                }
                // The back-end died in the accept queue; the next one may be behind it.
                Err(Failure::Session(SessionError::Closed)) if device.source.listens() => continue,
                Err(Failure::Session(why)) => Some(format!("the back-end has come back, but {why}")),
            },
            Ok(None) if device.source.listens() => {
                let (descriptor, limit) = device.source.wait_on();
                device.reconnect_thread.wait(descriptor, limit);
                continue;
            }
            Ok(None) | Err(NoBackend::Absent(_)) => None,
            Err(nobody) => Some(nobody.to_string()),
        };
        if let Some(why) = trouble.filter(|why| *why != told) {
            warn!("{}: {why}; trying again", device.name);
            told = why;
        }
        device.reconnect_thread.wait(None::<OwnedFd>, Some(backoff));
        backoff = (backoff * 2).min(RECONNECT_BACKOFF[1]);
    }
}
