//! Tests of lending: no buffer is lost or lent twice, and each lease ends.

#[path = "../../../memory/tests/it/common/mod.rs"]
mod common;

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use proptest::prelude::*;
use ringpass_memory::{Burst, Flags, ForeignMemory, Loan, Loans, Packet};
use ringpass_port::lending::{Borrower, Grant, Lease, Lender, Lending};

const SIZE: usize = 256;
const HEADER: usize = 12;

/// A guest that lends its buffers in turn and gets them back with frames.
struct Guest {
    memory: Box<[AtomicU8]>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lent: Option<Lease>,
    /// Buffers that the guest makes available, the oldest first.
    free: Vec<usize>,
    /// Buffers that are lent.
    out: Vec<usize>,
}

impl Guest {
    fn new(buffers: usize) -> Arc<Self> {
        let free = (0..buffers).collect();
        let memory = (0..buffers * SIZE).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Self { memory, state: Mutex::new(State { free, ..State::default() }) })
    }

    /// Returns the address in a buffer behind the header.
    fn buffer(&self, number: usize) -> NonNull<u8> {
        NonNull::from(&*self.memory).cast::<u8>().map_addr(|start| start.saturating_add(number * SIZE + HEADER))
    }
}

struct Lends(Arc<Guest>);

impl Lender for Lends {
    fn lend(&self, loans: &mut Loans<'_>) {
        let mut state = self.0.state.lock().unwrap();
        if state.lent != Some(loans.pool()) {
            return;
        }
        while loans.room() > 0 && !state.free.is_empty() {
            let number = state.free.remove(0);
            let loan = Loan { number, start: self.0.buffer(number), headroom: HEADER, size: SIZE - HEADER };
            // SAFETY: `state` lends each buffer once at a time, and each has `HEADER` bytes in front of its start
            // and the loan's size behind it. The guest of this test reads buffers only after they were completed.
            assert_eq!(unsafe { loans.lend(std::iter::once(loan)) }, 1);
            state.out.push(number);
        }
    }
}

/// A grant that counts the memory granted.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicUsize>);

impl Grant for Counts {
    fn grant(&self, _: &Arc<ForeignMemory>) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn revoke(&self, _: &Arc<ForeignMemory>) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn begin(guest: &Guest, lending: &Lending) {
    let lent = lending.begin(guest.memory.len() / SIZE, &[]).unwrap();
    guest.state.lock().unwrap().lent = lent;
}

fn end(guest: &Guest, lending: &Lending, limit: Duration) -> Result<(), String> {
    guest.state.lock().unwrap().lent = None;
    lending.end(limit)?;
    let mut state = guest.state.lock().unwrap();
    let out = std::mem::take(&mut state.out);
    state.free.extend(out);
    Ok(())
}

/// Receives frames in the borrower's buffers, as a card would.
fn receive(borrower: &mut Borrower, n: usize) -> Vec<Packet> {
    let buffers: Vec<_> = borrower.borrow(n).collect();
    let whole = |buffer: ringpass_memory::Buffer| {
        // SAFETY: 8 bytes are less than every buffer of the tests.
        let mut packet = unsafe { buffer.into_packet(8) };
        packet.add_flags(Flags::LENT);
        packet
    };
    buffers.into_iter().map(whole).collect()
}

/// Completes packets of this lease and returns their numbers.
fn complete(lent: Lease, packets: impl IntoIterator<Item = Packet>) -> Vec<usize> {
    let mut burst = Burst::new(256);
    packets.into_iter().for_each(|packet| burst.push(packet));
    let numbers = lent.complete(&mut burst, |_| true).map(|settled| settled.number as usize).collect();
    assert!(burst.is_empty(), "all of this term");
    numbers
}

#[test]
fn buffers_come_in_the_order_of_lending_and_go_to_their_owner() {
    let guest = Guest::new(10);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let grants = Counts::default();
    assert!(lending.begin(10, &[]).unwrap().is_none(), "nobody borrows");
    let mut borrower = Borrower::new(&lending, Box::new(grants.clone()), 64).unwrap();
    assert!(Borrower::new(&lending, Box::new(grants), 64).is_err_and(|why| why.contains("queue of its own")));
    assert_eq!(borrower.borrow(4).len(), 0, "no term yet");
    begin(&guest, &lending);
    assert!(borrower.changed());
    borrower.renew();
    assert!(!borrower.changed());

    let mut packets = receive(&mut borrower, 4);
    let lent = guest.state.lock().unwrap().lent.unwrap();
    let numbers = |packets: &[Packet]| packets.iter().map(|packet| lent.number(packet).unwrap()).collect::<Vec<_>>();
    assert_eq!(numbers(&packets), [0, 1, 2, 3]);
    packets.iter_mut().zip(7..).for_each(|(packet, n)| mark(packet, n));
    let last = packets.pop().unwrap();
    let mut burst = Burst::new(8);
    packets.drain(..).for_each(|packet| burst.push(packet));
    burst.push(pool(4, SIZE).alloc().unwrap());
    let settled: Vec<_> = lent.complete(&mut burst, |packet| number(packet) != 8).collect();
    assert_eq!((settled.len(), burst.len()), (1, 3), "up to one that is not wanted");
    assert_eq!((settled[0].start, settled[0].headroom, settled[0].len), (guest.buffer(0), HEADER, 8));
    assert!(settled[0].flags == Flags::LENT);
    assert_eq!(lent.complete(&mut burst, |_| true).map(|settled| settled.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(burst.len(), 1, "a stranger's stays");
    assert_eq!(lent.complete(&mut burst, |_| true).len(), 0);
    // SAFETY: the 8 bytes are inside the guest's memory, and the buffer was completed, so nobody writes it any more.
    let frame = unsafe { std::slice::from_raw_parts(guest.buffer(2).as_ptr(), 8) };
    assert_eq!(frame, 9u64.to_le_bytes());

    // A dropped packet's buffer is lent again first; it is still the guest's.
    drop(last);
    assert_eq!(numbers(&receive(&mut borrower, 1)), [3]);
    assert!(!borrower.is_lent(&pool(4, SIZE).alloc().unwrap()));
}

#[test]
fn lent_packets_keep_to_their_buffer() {
    let guest = Guest::new(2);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let mut borrower = Borrower::new(&lending, Box::new(Counts::default()), 64).unwrap();
    begin(&guest, &lending);
    borrower.renew();
    let mut packet = receive(&mut borrower, 1).pop().unwrap();
    assert_eq!((packet.headroom(), packet.capacity()), (HEADER, SIZE - HEADER));
    assert!(!packet.prepend(HEADER + 1));
    assert!(packet.prepend(HEADER));
    assert!(!packet.copy_from(&[0; SIZE + 1]) && packet.copy_from(&[1; SIZE]));
    packet.clear_flags(packet.flags());
    assert!(packet.flags().any(Flags::LENT), "whose it is cannot be cleared");

    // A frame that grew into the headroom does not fit behind a header, which needs that room. It has to be copied.
    let lent = guest.state.lock().unwrap().lent.unwrap();
    let mut burst = Burst::new(1);
    burst.push(packet);
    assert_eq!((burst[0].len(), lent.can_complete(&burst[0])), (SIZE, false));
    assert_eq!(lent.complete(&mut burst, |_| true).len(), 0);
    burst[0].set_len(SIZE - HEADER);
    assert_eq!(lent.complete(&mut burst, |_| true).len(), 1);
}

#[test]
fn a_lease_ends_when_all_is_back_and_not_before() {
    let guest = Guest::new(8);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let mut borrower = Borrower::new(&lending, Box::new(Counts::default()), 64).unwrap();
    begin(&guest, &lending);
    borrower.renew();
    let packets = receive(&mut borrower, 3);
    let why = end(&guest, &lending, Duration::from_millis(5)).unwrap_err();
    assert!(why.contains("did not come back"), "{why}");
    drop(packets);

    let mut second = receive(&mut borrower, 2);
    assert_eq!(second.len(), 2, "until the end is seen, those that came back");
    assert!(borrower.changed());
    borrower.renew();
    second.clear();
    assert_eq!(borrower.borrow(4).len(), 0);
    end(&guest, &lending, Duration::ZERO).unwrap();

    begin(&guest, &lending);
    borrower.renew();
    assert_eq!(receive(&mut borrower, 8).len(), 8);
    borrower.renew();
    end(&guest, &lending, Duration::from_millis(100)).unwrap_err();
    drop(borrower);
    assert!(!lending.has_borrower());
}

#[test]
fn a_packet_may_outlive_everything() {
    let guest = Guest::new(1);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let mut borrower = Borrower::new(&lending, Box::new(Counts::default()), 64).unwrap();
    begin(&guest, &lending);
    borrower.renew();
    let mut packet = receive(&mut borrower, 1).pop().unwrap();
    let _ = end(&guest, &lending, Duration::ZERO);
    drop((lending, borrower));
    mark(&mut packet, 5);
    assert_eq!(number(&packet), 5);
}

/// Memory of another process is granted to a device for as long as it may receive there, and no longer.
#[test]
#[cfg_attr(miri, ignore = "miri has no memory files")]
fn what_a_device_was_granted_is_revoked_when_its_borrower_goes() {
    let file = rustix::fs::memfd_create("lent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let memory = [ForeignMemory::map(file.as_fd(), 0, 4096).unwrap()];
    let guest = Guest::new(8);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let [one, other] = [(); 2].map(|()| Counts::default());
    let granted = || [&one, &other].map(|grants| grants.0.load(Ordering::Relaxed));

    let mut borrower = Borrower::new(&lending, Box::new(one.clone()), 64).unwrap();
    guest.state.lock().unwrap().lent = lending.begin(8, &memory).unwrap();
    borrower.renew();
    drop(receive(&mut borrower, 3));
    assert_eq!(granted(), [1, 0]);
    drop(borrower);
    assert_eq!(granted(), [0, 0], "all buffers are back, though the lease runs on");

    // Another borrower joins the lease.
    let mut borrower = Borrower::new(&lending, Box::new(other.clone()), 64).unwrap();
    assert_eq!(granted(), [0, 1]);
    borrower.renew();
    let packets = receive(&mut borrower, 3);
    assert_eq!(packets.len(), 3);
    drop(borrower);
    assert_eq!(granted(), [0, 1], "a card that did not stop may still write to these buffers");
    end(&guest, &lending, Duration::ZERO).unwrap_err();
    assert_eq!(granted(), [0, 1]);
    drop(packets);
    end(&guest, &lending, Duration::ZERO).unwrap();
    assert_eq!((granted(), lending.is_idle(), lending.has_borrower()), ([0, 0], true, false));
    assert_eq!(Arc::strong_count(&memory[0]), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Receive(usize),
    Settle(usize),
    Drop(usize),
    Available,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..200usize).prop_map(Step::Receive),
        4 => (0..200usize).prop_map(Step::Settle),
        2 => (0..200usize).prop_map(Step::Drop),
        3 => Just(Step::Available),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..count(100, 12))
}

proptest! {
    #![proptest_config(cases(200))]

    /// Whatever is done with packets, each buffer is in one place: the guest's, lent, or waiting to be lent again.
    #[test]
    fn every_buffer_is_in_one_place(buffers in 1..count(300, 20), steps in steps()) {
        let guest = Guest::new(buffers);
        let lending = Lending::new(Box::new(Lends(guest.clone())));
        let mut borrower = Borrower::new(&lending, Box::new(Counts::default()), 64).unwrap();
        begin(&guest, &lending);
        borrower.renew();
        let (mut packets, mut done) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Receive(n) => packets.extend(receive(&mut borrower, n)),
                Step::Drop(n) => {
                    let mut burst = Burst::new(256);
                    packets.drain(..n.min(packets.len())).for_each(|packet| burst.push(packet));
                }
                Step::Settle(n) => {
                    let mut state = guest.state.lock().unwrap();
                    let lent = state.lent.unwrap();
                    for number in complete(lent, packets.drain(..n.min(packets.len()).min(256))) {
                        let at = state.out.iter().position(|&out| out == number).expect("it was lent");
                        state.out.swap_remove(at);
                        done.push(number);
                    }
                }
                Step::Available => guest.state.lock().unwrap().free.append(&mut done),
                Step::Restart => {
                    packets.clear();
                    guest.state.lock().unwrap().lent = None;
                    std::thread::scope(|scope| {
                        let ending = scope.spawn(|| end(&guest, &lending, Duration::from_secs(10)));
                        while !borrower.changed() {
                            std::thread::yield_now();
                        }
                        borrower.renew();
                        ending.join().unwrap()
                    })
                    .unwrap();
                    begin(&guest, &lending);
                    borrower.renew();
                }
            }
            let state = guest.state.lock().unwrap();
            let mut all: Vec<usize> = state.free.iter().chain(&state.out).chain(&done).copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..buffers).collect::<Vec<_>>());
        }
    }
}

/// A lender, a borrower and a thread that completes packets run concurrently.
#[test]
fn threads_lend_and_settle() {
    let (guest, rounds) = (Guest::new(64), count(2000, 20));
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let mut borrower = Borrower::new(&lending, Box::new(Counts::default()), 64).unwrap();
    begin(&guest, &lending);
    borrower.renew();
    let lent = guest.state.lock().unwrap().lent.unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<Packet>>(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for packets in receiver {
                let mut state = guest.state.lock().unwrap();
                let places: Vec<_> = packets.iter().map(|packet| lent.number(packet).unwrap()).collect();
                assert!(
                    packets.iter().map(number).eq(places.iter().map(|&place| u64::from(place))),
                    "the buffers' own bytes"
                );
                // Every third packet is dropped instead.
                let others = packets.into_iter().enumerate().filter(|(n, _)| n % 3 > 0).map(|(_, packet)| packet);
                for place in complete(lent, others) {
                    state.out.retain(|&out| out != place);
                    state.free.push(place);
                }
            }
        });
        for _ in 0..rounds {
            let mut packets = receive(&mut borrower, 16);
            packets.iter_mut().for_each(|packet| {
                let place = lent.number(packet).unwrap();
                mark(packet, place.into());
            });
            sender.send(packets).unwrap();
        }
        drop(sender);
    });
    drop(borrower);
    end(&guest, &lending, Duration::ZERO).unwrap();
    assert_eq!(guest.state.lock().unwrap().free.len(), 64);
}
