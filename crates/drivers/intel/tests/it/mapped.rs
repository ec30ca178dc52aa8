//! Tests of an Rx queue that receives into a guest's lent buffers, on the model.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{
    Burst, DmaRegion, Flags, ForeignMemory, Loan, Loans, Mempool, MempoolConfig, Packet, RegionConfig,
};
use ringpass_models::ixgbe::{Card, CardConfig, Lie, Lies, When};
use ringpass_port::lending::{Lease, Lender, Lending};
use ringpass_port::{MacAddress, Port, PortConfig, QueuePair, Rule, Spread, State};
use ringpass_testing::Wire;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SIZE: usize = 2048;
const HEADER: usize = 12;
/// Bytes in front of the first buffer.
const FRONT: usize = 4096;

/// A guest's memory, in a file that it shares, and the state of its buffers.
struct Guest {
    region: Arc<DmaRegion>,
    memory: Arc<ForeignMemory>,
    state: Mutex<Buffers>,
}

#[derive(Default)]
struct Buffers {
    lent: Option<Lease>,
    free: Vec<usize>,
    out: Vec<usize>,
}

impl Guest {
    fn new(buffers: usize) -> Arc<Self> {
        let region = DmaRegion::new(FRONT + buffers * SIZE, &RegionConfig::default()).unwrap();
        let file = region.file().unwrap().as_fd().try_clone_to_owned().unwrap();
        let memory = ForeignMemory::map_shared(file, 0, region.len()).unwrap();
        let state = Mutex::new(Buffers { free: (0..buffers).collect(), ..Buffers::default() });
        Arc::new(Self { region, memory, state })
    }

    /// Returns the present contents of all its memory.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: `region` is mapped and as long as `len` says. The card is not stepped meanwhile, so nothing
        // writes there.
        unsafe { std::slice::from_raw_parts(self.region.at(0), self.region.len()) }.to_vec()
    }

    fn begin(&self, lending: &Lending) {
        let lent = lending.begin(self.state.lock().unwrap().free.len(), std::slice::from_ref(&self.memory)).unwrap();
        self.state.lock().unwrap().lent = lent;
    }

    /// Takes the guest's frames from `packets`. Returns them, and the packets in other buffers. If `answers`,
    /// it makes the buffers available again.
    fn take(&self, packets: Vec<Packet>, answers: bool) -> (Vec<Vec<u8>>, Vec<Packet>) {
        let mut state = self.state.lock().unwrap();
        let (mut frames, mut foreign) = (Vec::new(), Vec::new());
        let lent = state.lent.expect("a term");
        let mut own = Burst::new(256);
        for packet in packets {
            let Some(number) = lent.number(&packet) else {
                foreign.push(packet);
                continue;
            };
            assert!(packet.flags().any(Flags::LENT));
            let start = FRONT + number as usize * SIZE + HEADER;
            frames.push(self.bytes()[start..start + packet.len()].to_vec());
            assert!(frames.last().unwrap()[..] == packet.to_vec()[..], "the frame lies in the guest's memory");
            state.out.retain(|&out| out != number as usize);
            if answers {
                state.free.push(number as usize);
            }
            own.push(packet);
        }
        assert_eq!(lent.complete(&mut own, |_| true).len(), frames.len());
        (frames, foreign)
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
            let start = self.0.memory.as_ptr().wrapping_add(FRONT + number * SIZE + HEADER);
            let start = NonNull::new(start).unwrap();
            let loan = Loan { number, start, headroom: HEADER, size: SIZE - HEADER };
            // SAFETY: a number leaves `free` before it is lent, so no buffer is lent twice. The buffer lies in
            // the guest's memory, with `headroom` bytes in front of `start` and `size` bytes behind it.
            unsafe { loans.lend(std::iter::once(loan)) };
            state.out.push(number);
        }
    }
}

struct Rig {
    queues: Vec<QueuePair>,
    port: Ixgbe,
    card: Arc<Card>,
    wire: Wire,
    pool: Mempool,
}

impl Rig {
    fn new(config: &PortConfig, lies: Lies) -> Self {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let card = Card::new(&CardConfig { mac: MacAddress(OWN), lies, ..Default::default() });
        let mut port = Ixgbe::open(card.clone(), "model", config, &pool).unwrap();
        let queues = port.take_queues();
        Self { queues, port, card, wire: Wire::new(256, 2048), pool }
    }

    /// Puts frames on the wire and returns what arrives at a queue.
    fn receive(&mut self, queue: usize, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
        self.look(queue);
        self.arrive(frames);
        self.look(queue)
    }

    /// Puts frames on the wire and has the card receive them.
    fn arrive(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wire.frames().to_card.extend(frames);
        let mut ends = self.wire.ends();
        while self.card.step(&mut ends) > 0 {}
    }

    fn look(&mut self, queue: usize) -> Vec<Packet> {
        let mut burst = Burst::new(256);
        assert_eq!(self.queues[queue].rx.rx_burst(&mut burst), burst.len());
        burst.drain().collect()
    }
}

fn frame(to: [u8; 6], number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    frame[..6].copy_from_slice(&to);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 3, 0x88, 0xb5]);
    frame
}

#[test]
fn frames_arrive_in_the_guests_own_buffers_in_order() {
    let mut rig = Rig::new(&PortConfig::default(), Lies::default());
    let guest = Guest::new(100);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    rig.queues[0].rx.borrow_from(&lending).unwrap();
    guest.begin(&lending);
    for round in 0..50 {
        let sent: Vec<_> = (0..20u8).map(|n| frame(OWN, n.wrapping_add(round * 5), 60 + 70 * usize::from(n))).collect();
        let packets = rig.receive(0, sent.iter().cloned());
        let (frames, foreign) = guest.take(packets, true);
        assert_eq!(foreign.len(), 0, "none in the host's buffers");
        assert!(frames == sent, "in order");
    }
    assert_eq!(lending.host_buffers(), 0);
}

/// With VMDq, the guest's address has a queue of its own, and no other frames get into the guest's memory.
#[test]
fn only_what_is_meant_for_the_guest_gets_into_its_memory() {
    let config = PortConfig { queues: 2, spread: Spread::Steered, ..Default::default() };
    let mut rig = Rig::new(&config, Lies::default());
    rig.port.steer(&Rule::Address { mac: MacAddress(GUEST), vlan: None }, 1).unwrap();
    let guest = Guest::new(64);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    rig.queues[1].rx.borrow_from(&lending).unwrap();
    guest.begin(&lending);
    rig.look(1);
    let frames = (0..30).flat_map(|_| [frame(OWN, 0xee, 900), frame(GUEST, 0x11, 900), frame([2; 6], 0xdd, 900)]);
    let packets = rig.receive(1, frames);
    assert_eq!(packets.len(), 30);
    let (own, foreign) = guest.take(packets, false);
    assert_eq!((own.len(), foreign.len()), (30, 0));
    let bytes = guest.bytes();
    assert!(!bytes.contains(&0xee) && !bytes.contains(&0xdd), "a foreign frame in the guest's memory");
    assert_eq!(bytes.iter().filter(|&&byte| byte == 0x11).count(), 30 * (900 - 14));
    assert!(rig.look(0).len() >= 30, "the others are on the first queue");
}

#[test]
fn a_guest_that_lends_nothing_costs_its_own_queue_only() {
    let config = PortConfig { queues: 2, spread: Spread::Steered, ..Default::default() };
    let mut rig = Rig::new(&config, Lies::default());
    rig.port.steer(&Rule::Address { mac: MacAddress(GUEST), vlan: None }, 1).unwrap();
    let guest = Guest::new(40);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    rig.queues[1].rx.borrow_from(&lending).unwrap();
    guest.begin(&lending);
    rig.look(1);
    // The guest takes 40 frames and lends nothing again: after a while, the ring is refilled with host buffers.
    let packets = rig.receive(1, (0..70).map(|n| frame(GUEST, n, 100)));
    let mut kept = Vec::new();
    let (own, foreign) = guest.take(packets, false);
    assert_eq!(own.len(), 40);
    kept.extend(foreign);
    let start = Instant::now();
    while lending.host_buffers() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "the ring stays empty");
        kept.extend(rig.look(1));
    }
    let more = rig.receive(1, (0..20).map(|n| frame(GUEST, n, 100)));
    assert_eq!(more.len(), 20);
    assert!(more.iter().all(|packet| !packet.flags().any(Flags::LENT)), "in the host's buffers");
    assert_eq!(rig.receive(0, (0..200).map(|n| frame(OWN, n, 100))).len(), 200, "the other queue lost nothing");
    drop((kept, more));
    // Once the guest lends again, frames are no longer copied.
    guest.state.lock().unwrap().free = (0..40).collect();
    (0..5).for_each(|_| drop(rig.receive(1, (0..32).map(|n| frame(GUEST, n, 100)))));
    let (own, _) = guest.take(rig.receive(1, (0..20).map(|n| frame(GUEST, n, 100))), true);
    assert_eq!(own.len(), 20);
}

/// The guest goes while the card has its buffers. The card then gives up the buffers and the guest's memory.
#[test]
fn a_guest_that_goes_gets_no_more_frames_and_another_may_come() {
    let mut rig = Rig::new(&PortConfig::default(), Lies::default());
    let guest = Guest::new(100);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    rig.queues[0].rx.borrow_from(&lending).unwrap();
    for _ in 0..20 {
        guest.begin(&lending);
        let packets = rig.receive(0, (0..10).map(|n| frame(OWN, n, 500)));
        assert_eq!(guest.take(packets, true).0.len(), 10);
        // These frames have not been polled when the guest goes.
        rig.arrive((0..5).map(|n| frame(OWN, n, 500)));
        guest.state.lock().unwrap().lent = None;
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| lending.end(Duration::from_secs(10)));
            while !ending.is_finished() {
                rig.look(0);
            }
            ending.join().unwrap()
        })
        .expect("all came back");
        lending.revoke();
        let before = guest.bytes();
        let packets = rig.receive(0, (0..30).map(|n| frame(OWN, 0x77 + n, 500)));
        assert_eq!(packets.len(), 30, "in the host's buffers");
        assert!(guest.bytes() == before, "its memory is left alone");
        let mut state = guest.state.lock().unwrap();
        let out = std::mem::take(&mut state.out);
        state.free.extend(out);
        assert_eq!(state.free.len(), 100);
    }
    assert_eq!(rig.card.counters().dma_faults, 0);
    assert!(matches!(rig.port.state(), State::Running));
    drop(rig.queues);
    assert_eq!(rig.pool.outstanding(1), 0);
}

/// A card that does not stop keeps the guest's buffers, and the port ends.
#[test]
fn a_card_that_does_not_stop_ends_the_port() {
    let lies = Lies::default().with(Lie::DisableNever, When::default());
    let mut rig = Rig::new(&PortConfig::default(), lies);
    let guest = Guest::new(10);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    rig.queues[0].rx.borrow_from(&lending).unwrap();
    guest.begin(&lending);
    rig.look(0);
    assert!(matches!(rig.port.state(), State::Gone(why) if why.contains("does not stop a queue")));
}

#[test]
fn one_guest_queue_is_mapped_once() {
    let guest = Guest::new(1);
    let lending = Lending::new(Box::new(Lends(guest.clone())));
    let (mut one, mut other) =
        (Rig::new(&PortConfig::default(), Lies::default()), Rig::new(&PortConfig::default(), Lies::default()));
    one.queues[0].rx.borrow_from(&lending).unwrap();
    let error = other.queues[0].rx.borrow_from(&lending).unwrap_err().to_string();
    assert!(error.contains("queue of its own") && !error.contains('\n'), "{error}");
    drop(one);
    other.queues[0].rx.borrow_from(&lending).unwrap();
}
