//! QEMU's own vhost-user front-end, old and new, with Linux's driver behind it: nothing that they say is refused, and what
//! was lost is set up again. No frame moves here; the device only looks.

mod common;

use std::path::Path;
use std::time::Instant;

use common::*;
use ringpass_lab::{Guest, Qemu};
use ringpass_port::Role;
use ringpass_vhost_user::*;

fn serve_at(path: &Path, toy: &Toy) -> Control {
    serve(Endpoint { path: path.into(), role: Role::Listen }, Box::new(toy.clone())).unwrap()
}

fn until(toy: &Toy, running: &[usize]) {
    let start = Instant::now();
    while toy.running() != running || running.iter().any(|&queue| !toy.state().queues[queue].enabled) {
        let state = toy.state();
        assert!(start.elapsed() < 12 * LIMIT, "{running:?} run; sessions have ended: {:?}", state.ended);
        drop(state);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn life(qemu: Qemu, reconnect: &str, vectors: u32) {
    let _alone = ringpass_lab::alone();
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_test_writer().try_init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let toy = Toy::idle();
    let control = serve_at(&path, &toy);
    let chardev = format!("socket,id=vhost,path={},{reconnect}", path.display());
    let guest = Guest::new()
        .cpus(2)
        .qemu(qemu)
        .arguments(&["-chardev", &chardev, "-netdev", "vhost-user,id=net,chardev=vhost,queues=2"])
        .device(&format!("virtio-net-pci,netdev=net,mq=on,packed=on,mac=02:00:00:00:00:01,vectors={vectors}"))
        .boot();
    guest.run("modprobe virtio_net");
    until(&toy, &[0, 1, 2, 3]);
    toy.touch();
    for queue in &toy.state().queues {
        let start = queue.running.as_ref().unwrap();
        assert!(start.kick.is_some() && start.setup.features & ringpass_virtio::features::VERSION_1 != 0);
    }
    // That it goes and comes back is a test of the port, `guest_vhost_restart.rs`: this device never returns a buffer.
    drop(control);
    assert_eq!(toy.state().ended, ["the port is closed"], "nothing was refused");
}

#[test]
fn qemu_7_2() {
    // With interrupts by message, this one crashes under TCG when vhost-user starts.
    life(Qemu::V7_2, "reconnect=1", 0);
}

#[test]
fn newest_qemu() {
    life(Qemu::Newest, "reconnect-ms=100", 6);
}
