//! Tests of the functions as a C program calls them.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::*;

const EMPTY: Packet = Packet { data: null_mut(), length: 0, total: 0, handle: [null_mut(); 2] };

fn text() -> String {
    // SAFETY: the text is valid until this thread's next error, and is copied at once.
    unsafe { CStr::from_ptr(ringpass_error()) }.to_string_lossy().into_owned()
}

fn open(addresses: &[&CStr]) -> (*mut Ports, Vec<*mut Queue>) {
    let pointers: Vec<_> = addresses.iter().map(|address| address.as_ptr()).collect();
    let mut ports = null_mut();
    // SAFETY: the array has that many strings, and `ports` is writable.
    assert_eq!(unsafe { ringpass_open(pointers.as_ptr(), pointers.len(), null(), &mut ports) }, 0, "{}", text());
    let queue = |port| {
        let mut queue = null_mut();
        // SAFETY: `ports` was opened above, and `queue` is writable.
        assert_eq!(unsafe { ringpass_port_queue(ports, port, 0, &mut queue) }, 0, "{}", text());
        queue
    };
    (ports, (0..addresses.len()).map(queue).collect())
}

#[test]
fn packets_are_allocated_changed_sent_and_freed() {
    let (ports, queues) = open(&[c"null"]);
    let mut packets = [const { EMPTY }; 300];
    let mut stats = Stats { rx_packets: 0, rx_bytes: 0, rx_drops: 0, tx_packets: 0, tx_bytes: 0, tx_drops: 0 };
    // SAFETY: ports and queue are open until `ringpass_close`, on this thread alone, and so are the packets; their arrays have
    // the lengths that are given, and 2,048 bytes are written to a buffer of that size.
    unsafe {
        let packet = &raw mut packets[0];
        assert_eq!(ringpass_alloc(queues[0], packet, 300), 300);
        assert_eq!((ringpass_capacity(packet), (*packet).length), (2048, 0));
        (*packet).data.write_bytes(7, 2048);
        (*packet).length = 100;
        let start = (*packet).data;
        assert_eq!((ringpass_prepend(packet, 4), (*packet).length), (0, 104));
        assert_eq!((*packet).data, start.sub(4));
        assert_eq!((ringpass_trim_front(packet, 10), (*packet).length, (*packet).total), (0, 94, 94));
        assert_eq!((*packet).data, start.add(6));
        let mut copy = [0_u8; 60];
        assert_eq!(ringpass_copy(packet, 50, copy.as_mut_ptr().cast::<c_void>(), 60), 44);
        assert_eq!(copy.map(|byte| byte == 7), std::array::from_fn(|index| index < 44));
        assert_eq!(ringpass_copy(packet, 95, copy.as_mut_ptr().cast::<c_void>(), 60), 0);

        packets.iter_mut().for_each(|packet| packet.length = packet.length.max(60));
        packets[290].length = 5000;
        assert_eq!(ringpass_send(queues[0], &raw mut packets[0], 300), 290, "up to the one that is too long");
        assert!(packets[289].handle[0].is_null() && packets[289].data.is_null());
        assert_eq!(ringpass_send(queues[0], &raw mut packets[290], 10), RINGPASS_INVALID);
        assert_eq!(text(), "a frame of 5000 bytes in a buffer of 2048");
        assert_eq!(ringpass_send(queues[0], &raw mut packets[0], 1), RINGPASS_INVALID, "it was sent");
        ringpass_free(&raw mut packets[0], 300);
        ringpass_free(&raw mut packets[0], 300);
        assert_eq!(ringpass_port_stats(ports, 0, &mut stats), 0);
        assert_eq!((stats.tx_packets, stats.tx_bytes), (290, 289 * 60 + 94));
        stats.tx_packets = 0;
        assert_eq!((ringpass_queue_stats(ports, 0, 0, &mut stats), stats.tx_packets), (0, 290));
        assert_eq!(ringpass_queue_stats(ports, 0, 1, &mut stats), RINGPASS_INVALID);
        assert_eq!(text(), "the port has fewer queues");
        assert_eq!(ringpass_close(ports), 0);
    }
}

#[test]
fn a_cable_passes_packets_between_its_ends() {
    let (ports, queues) = open(&[c"null"]);
    let mut packets = [const { EMPTY }; 8];
    let mut ends = [null_mut(); 2];
    // SAFETY: ports, queue and the cable's ends are open until `ringpass_close`, on this thread alone; the arrays have the lengths
    // that are given.
    unsafe {
        assert_eq!(ringpass_cable(ports, 0, ends.as_mut_ptr()), RINGPASS_INVALID);
        assert_eq!(ringpass_cable(ports, 8, null_mut()), RINGPASS_INVALID);
        assert_eq!(ringpass_cable(ports, 8, ends.as_mut_ptr()), 0);
        for [from, to] in [ends, [ends[1], ends[0]]] {
            assert_eq!(ringpass_alloc(queues[0], &raw mut packets[0], 8), 8);
            packets.iter_mut().for_each(|packet| packet.length = 60);
            let data = packets.each_ref().map(|packet| packet.data);
            assert_eq!(ringpass_send(from, &raw mut packets[0], 8), 8);
            assert_eq!(ringpass_receive(to, &raw mut packets[0], 8), 8);
            assert_eq!(packets.each_ref().map(|packet| packet.data), data, "the same buffers, in order");
            ringpass_free(&raw mut packets[0], 8);
        }
        assert_eq!(ringpass_close(ports), 0);
    }
}

#[test]
fn packets_that_are_held_are_missed_and_may_be_freed_later() {
    let (ports, queues) = open(&[c"null"]);
    let mut packet = EMPTY;
    // SAFETY: the queue is used until `ringpass_close`, on this thread alone. The packet may be freed afterwards.
    unsafe {
        assert_eq!(ringpass_alloc(queues[0], &mut packet, 1), 1);
        assert_eq!(ringpass_close(ports), 1);
        ringpass_free(&mut packet, 1);
    }
}

#[test]
fn models_have_links_and_addresses_and_waits_end() {
    let (ports, queues) = open(&[c"model:null", c"model,device=1041:null"]);
    let mut link = Link { up: false, mbps: 0 };
    let mut mac = [0; 6];
    // SAFETY: ports and queues are open until `ringpass_close`, on this thread alone, and results can be written.
    unsafe {
        assert_eq!(ringpass_port_count(ports), 2);
        assert_eq!(CStr::from_ptr(ringpass_port_name(ports, 1)), c"model:null");
        assert_eq!((ringpass_port_link(ports, 0, &mut link), ringpass_check(ports)), (0, 0));
        assert_eq!((ringpass_port_mac(ports, 0, mac.as_mut_ptr()), mac[0]), (0, 2));
        assert_eq!(ringpass_port_set_promiscuous(ports, 0, false), 0);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 50 {
            assert_eq!(ringpass_wait(queues.as_ptr(), 2, 0, 1000), 0);
        }
        let mut packet = EMPTY;
        assert_eq!(ringpass_receive(queues[0], &mut packet, 1), 0);
        assert_eq!((ringpass_finish(ports), ringpass_finish(ports)), (0, 0));
        let mut queue = null_mut();
        assert_eq!(ringpass_port_queue(ports, 0, 0, &mut queue), RINGPASS_INVALID);
        assert_eq!(ringpass_close(ports), 0);
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let mut ports = null_mut();
    let mut queue = null_mut();
    let config = ringpass_config_new();
    // SAFETY: all pointers are NULL, which each function refuses, or valid.
    unsafe {
        let open = |address: &CStr, config: *const Config, ports: *mut *mut Ports| {
            ringpass_open([address.as_ptr()].as_ptr(), 1, config, ports)
        };
        assert_eq!(open(c"nothing:x", null(), &mut ports), RINGPASS_INVALID);
        assert!(text().contains("no such kind of port"), "{}", text());
        assert_eq!(open(c"null", null(), null_mut()), RINGPASS_INVALID);
        assert_eq!(ringpass_open([null()].as_ptr(), 1, null(), &mut ports), RINGPASS_INVALID);
        assert_eq!(ringpass_open(null(), 0, null(), &mut ports), RINGPASS_INVALID);
        ringpass_config_set_queues(config, 65);
        assert_eq!(open(c"null", config, &mut ports), RINGPASS_INVALID);
        assert!(ports.is_null());
        ringpass_config_set_queues(config, 2);
        ringpass_config_set_pages(config, RINGPASS_PAGES_ORDINARY);
        assert_eq!(open(c"null", config, &mut ports), 0);
        ringpass_config_free(config);
        let queue_of = |port, index, queue: *mut *mut Queue| ringpass_port_queue(ports, port, index, queue);
        assert_eq!([queue_of(0, 1, &mut queue), queue_of(0, 2, &mut queue)], [0, RINGPASS_INVALID]);
        assert_eq!([queue_of(1, 0, &mut queue), queue_of(0, 0, null_mut())], [RINGPASS_INVALID; 2]);
        assert!(ringpass_port_name(ports, 1).is_null());
        let results: [c_int; 10] = [
            ringpass_receive(null_mut(), null_mut(), 0),
            ringpass_receive(queue, null_mut(), 1),
            ringpass_alloc(queue, null_mut(), 1),
            ringpass_send(queue, null_mut(), 1),
            ringpass_wait(null(), 0, 0, 0),
            ringpass_wait([null_mut()].as_ptr(), 1, 0, 0),
            ringpass_capacity(null_mut()),
            ringpass_capacity(&mut { EMPTY }),
            ringpass_port_count(null()),
            ringpass_port_mac(ports, 0, null_mut()),
        ];
        assert_eq!(results, [RINGPASS_INVALID; 10]);
        ringpass_free(null_mut(), 3);
        ringpass_config_set_mtu(null_mut(), 3);
        ringpass_config_free(null_mut());
        assert_eq!([ringpass_close(null_mut()), ringpass_close(ports)], [0, 0]);
    }
}
