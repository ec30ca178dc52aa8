//! Tests with QEMU's own vhost-user front-end, old and new, and Linux's driver: nothing that they send is refused,
//! and a lost connection is set up again. No frames move; the device only records what it is told.

use std::path::Path;
use std::time::Instant;

use crate::common::*;
use ringpass_lab::{Guest, Qemu};
use ringpass_port::Role;
use ringpass_vhost_user::*;

fn serve_at(path: &Path, mock: &MockDevice) -> ServerHandle {
    serve(Endpoint { path: path.into(), role: Role::Listen, access: Default::default() }, Box::new(mock.clone()))
        .unwrap()
}

fn until(mock: &MockDevice, running: &[usize]) {
    let start = Instant::now();
    while mock.running() != running || running.iter().any(|&queue| !mock.state().queues[queue].enabled) {
        let state = mock.state();
        assert!(start.elapsed() < 12 * LIMIT, "{running:?} run; sessions have ended: {:?}", state.ended);
        drop(state);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn life(qemu: Qemu, reconnect: &str, vectors: u32) {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_test_writer().try_init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let mock = MockDevice::idle();
    let control = serve_at(&path, &mock);
    let chardev = format!("socket,id=vhost,path={},{reconnect}", path.display());
    let guest = Guest::new()
        .cpus(2)
        .qemu(qemu)
        .arguments(&["-chardev", &chardev, "-netdev", "vhost-user,id=net,chardev=vhost,queues=2"])
        .device(&format!("virtio-net-pci,netdev=net,mq=on,packed=on,mac=02:00:00:00:00:01,vectors={vectors}"))
        .boot();
    guest.run("modprobe virtio_net");
    until(&mock, &[0, 1, 2, 3]);
    mock.touch();
    for queue in &mock.state().queues {
        let start = queue.running.as_ref().unwrap();
        assert!(start.kick.is_some() && start.setup.features & ringpass_virtio::features::VERSION_1 != 0);
    }
    // A back-end that disappears and returns is tested with the port in `guest_vhost_restart.rs`: this device never
    // returns a buffer.
    drop(control);
    assert_eq!(mock.state().ended, ["the port is closed"], "nothing was refused");
}

#[test]
fn qemu_7_2() {
    // With MSI-X, this version crashes under TCG when vhost-user starts.
    life(Qemu::V7_2, "reconnect=1", 0);
}

#[test]
fn newest_qemu() {
    life(Qemu::Newest, "reconnect-ms=100", 6);
}
