//! Model and guest outlive each other's death.

mod common;

use std::time::Duration;

use common::guest::{Guest, Wire, alone, ping, up};
use common::until;

#[test]
fn the_model_serves_the_next_guest_and_a_guest_survives_the_model() {
    let _alone = alone();
    let mut wire = Wire::new(1, &[]);

    eprintln!("- guests killed while packets flow, one after another, and the same model");
    for _ in 0..2 {
        let guest = Guest::new().card(&wire.socket()).boot();
        up(&guest, 0, 1);
        ping(&guest, "198.18.1.1", "");
        let _flood = guest.spawn("ping -f -q 198.18.1.1");
        let _back = wire.host.spawn(&["ping", "-f", "-q", "198.18.1.2"]);
        std::thread::sleep(Duration::from_millis(500));
        drop(guest);
    }

    eprintln!("- the model killed while packets flow");
    let guest = Guest::new().card(&wire.socket()).boot();
    up(&guest, 0, 1);
    ping(&guest, "198.18.1.1", "");
    let flood = guest.spawn("ping -f -q 198.18.1.1");
    std::thread::sleep(Duration::from_millis(500));
    wire.restart();
    assert_eq!(guest.run("echo alive"), "alive\n");
    until("the driver's notice", || guest.console().contains("Adapter removed"));
    guest.run("killall ping");
    guest.wait(&flood, Duration::from_secs(20));
    drop(guest);

    eprintln!("- and the new model takes a guest");
    let guest = Guest::new().card(&wire.socket()).boot();
    up(&guest, 0, 1);
    ping(&guest, "198.18.1.1", "");
}
