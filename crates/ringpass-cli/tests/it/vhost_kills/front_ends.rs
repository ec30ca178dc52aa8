//! Front-ends are killed.

use std::time::Instant;

use ringpass_port::{Port, Role};

use crate::common::back::Back;
use crate::common::vhost::{Backend, socket, vhost};
use crate::common::*;
use crate::vhost_kills::{AT_WORK, Held, Lives, RINGS, ROUND, start};

/// The front-ends of one of two switch ports are killed; the front-end of the other sends all the time.
#[test]
fn front_ends_at_a_switch() {
    const KILLS: u32 = 240;
    let folder = folder();
    let [dying, staying] = [0, 1].map(|number| socket(&folder, number));
    let switch = start(&["switch", &vhost(&dying), &vhost(&staying), "--flood", "0"]);
    wait_until("the switch's first line", || switch.line().contains("stats"));
    let generator = start(&["pktgen", &format!("virtio-user:{}", text(&staying)), "--rate", "20k"]);
    let first = start(&["echo", &format!("virtio-user:{}", text(&dying)), "--count", "200"]);
    let (mut lives, mut held) = (Lives::after(1, first), None);
    for kills in 1..=KILLS {
        let address = format!("virtio-user:{}{}", text(&dying), RINGS[(kills / 3) as usize % RINGS.len()]);
        let command = match kills % 3 {
            0 => &["echo", &address][..],
            1 => &["pktgen", &address, "--rate", "20k"],
            _ => &["ping", &address, "-i", "0.001"],
        };
        lives.end(start(command));
        if kills % ROUND == 0 {
            lives.whole(start(&["echo", &address, "--count", "200"]));
            held.get_or_insert_with(|| Held::without_peers(switch.id()));
        }
    }
    held.expect("some rounds").no_more();
    let sent = generator.summary();
    assert!(sent["returned"].as_u64() > Some(200 * u64::from(KILLS / ROUND)), "{sent}");
    assert_eq!((&sent["duplicate"], &sent["ports"][0]["extended"]["reconnects"]), (&0.into(), &0.into()), "{sent}");
    let summary = switch.summary();
    let [died, stayed] = [0, 1].map(|port| &summary["ports"][port]["extended"]);
    let sessions = died["sessions"].as_u64().expect("a number");
    eprintln!("{KILLS} front-ends of a switch: {sessions} had rings that ran, {} returned frames", sent["returned"]);
    assert!(sessions > u64::from(KILLS / AT_WORK), "{summary}");
    assert_eq!(
        (&died["guest_faults"], &stayed["guest_faults"], &stayed["sessions"]),
        (&0.into(), &0.into(), &1.into())
    );
}

/// All buffers come back.
#[test]
fn front_ends_of_a_port_in_this_process() {
    const KILLS: u32 = 120;
    let folder = folder();
    let path = socket(&folder, 0);
    let mut back = Back::new(&path, Role::Listen);
    let address = |kills: u32| format!("virtio-user:{}{}", text(&path), RINGS[kills as usize % RINGS.len()]);
    let begin = Instant::now();
    let first = start(&["echo", &address(0)]);
    back.echoed(500);
    drop(first);
    let mut lives = Lives::new(2);
    lives.lasted(2 * begin.elapsed());
    for kills in 1..=KILLS {
        let (begin, front_end) = (Instant::now(), start(&["echo", &address(kills)]));
        if kills % ROUND == 0 {
            back.echoed(500);
            lives.lasted(2 * begin.elapsed());
        } else {
            back.run(lives.moment());
        }
        drop(front_end);
    }
    wait_until("the last one's end", || !back.port.link().up);
    let extended = back.port.extended();
    eprintln!("{KILLS} front-ends of a port: {extended:?}");
    let count = |name| extended.iter().find(|(found, _)| *found == name).expect("a counter").1;
    assert!(count("sessions") > u64::from(KILLS / AT_WORK) && count("guest_faults") == 0, "{extended:?}");
    let Back { port, queues, pool } = back;
    drop((port, queues));
    assert_eq!(pool.outstanding(1), 0, "buffers were lost");
}

/// A card receives into the buffers of the front-ends that are killed.
#[test]
fn front_ends_that_a_card_receives_for() {
    const KILLS: u32 = 120;
    let folder = folder();
    let path = socket(&folder, 2);
    let back_end = Backend::between(2, &vhost(&path), "model:tap:", "--map");
    back_end.host.neighbour(&back_end.tap, &back_end.guest(), "02:00:00:00:02:02");
    let _pings = back_end.host.spawn(&["ping", "-q", "-i", "0.001", &back_end.guest()]);
    let first = start(&["echo", &format!("virtio-user:{}", text(&path)), "--count", "100"]);
    let (mut lives, mut held) = (Lives::after(3, first), None);
    for kills in 1..=KILLS {
        let address = format!("virtio-user:{}{}", text(&path), RINGS[kills as usize % RINGS.len()]);
        lives.end(start(&["echo", &address]));
        if kills % ROUND == 0 {
            lives.whole(start(&["echo", &address, "--count", "100"]));
            held.get_or_insert_with(|| Held::without_peers(back_end.id()));
        }
    }
    held.expect("some rounds").no_more();
    let (summary, log) = back_end.end();
    let port = &summary["ports"][1]["extended"];
    eprintln!("{KILLS} front-ends with a card: {port}");
    assert!(port["mapped_packets"].as_u64() > Some(50 * u64::from(KILLS / ROUND)), "{summary}");
    assert!(port["sessions"].as_u64() > Some((KILLS / AT_WORK).into()) && port["guest_faults"] == 0, "{summary}{log}");
}
