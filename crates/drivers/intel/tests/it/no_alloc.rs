//! The packet path does not allocate, for any size of ring and batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{FakeCard, Kind, each_kind};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::{PortConfig, QueuePair};
use ringpass_testing::{CountingAllocator, allocator_calls};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Acts as a correct card: receives frames into all posted descriptors, and sends all frames.
fn play(kind: &Kind, straw: &FakeCard, [rx_head, tx_head]: &mut [u32; 2], ring: u32) {
    let (rx_tail, tx_tail) = (straw.get(kind.rdt), straw.get(kind.tdt));
    while *rx_head != rx_tail {
        straw.rx(*rx_head, 1).store(RX_DD | RX_EOP | 60 << RX_LENGTH_SHIFT, Ordering::Release);
        *rx_head = (*rx_head + 1) % ring;
    }
    while *tx_head != tx_tail {
        let descriptor = straw.tx(*tx_head, 1);
        if descriptor.load(Ordering::Acquire) & TX_RS != 0 {
            descriptor.store(TX_DD, Ordering::Release);
        }
        *tx_head = (*tx_head + 1) % ring;
    }
}

#[test]
fn forwarding_a_million_packets_allocates_nothing() {
    each_kind(|kind| {
        let pool = Mempool::new(&MempoolConfig { buffers: 8192, ..Default::default() }).unwrap();
        for (ring, batch) in [(64, 1), (64, 256), (512, 32), (4096, 7)] {
            let config = PortConfig { rx_ring: ring, tx_ring: ring, ..Default::default() };
            let straws = [FakeCard::new(kind), FakeCard::new(kind)];
            let open = |straw: &Arc<FakeCard>| straw.open(&config, &pool).unwrap();
            let mut ports = [open(&straws[0]), open(&straws[1])];
            let [mut a, mut b] = [0, 1].map(|port: usize| ports[port].take_queues().remove(0));
            let mut heads = [[0; 2]; 2];
            let mut burst = Burst::new(batch);
            let mut pass = |from: &mut QueuePair, to: &mut QueuePair| {
                let received = from.rx.rx_burst(&mut burst);
                to.tx.tx_burst(&mut burst);
                burst.clear();
                received
            };
            let calls = allocator_calls(|| {
                let mut forwarded = 0;
                while forwarded < 250_000 {
                    // `get` takes no lock and `play` does not allocate, so all counted calls are the driver's.
                    straws.iter().zip(&mut heads).for_each(|(straw, heads)| play(kind, straw, heads, ring as u32));
                    forwarded += pass(&mut a, &mut b) + pass(&mut b, &mut a);
                }
            });
            assert_eq!(calls, 0, "rings of {ring}, batches of {batch}");
        }
    });
}
