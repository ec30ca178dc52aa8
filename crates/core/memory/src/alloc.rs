//! Allocation of empty packets, for code that generates frames instead of receiving them.

use crate::{Burst, Cache, MAGAZINE, Mempool, Packet};

impl Cache {
    /// Takes up to `want` empty packets; otherwise like [`buffers`](Self::buffers).
    #[inline]
    pub fn take(&mut self, want: usize) -> impl ExactSizeIterator<Item = Packet> {
        // SAFETY: a length of 0 is at most any buffer size.
        self.buffers(want).map(|buffer| unsafe { buffer.into_packet(0) })
    }

    /// Fills the burst up to its limit with empty packets; with fewer if the pool runs dry.
    pub fn alloc(&mut self, burst: &mut Burst) {
        loop {
            let fresh = self.run(burst.room());
            for (place, buffer) in burst.spare().iter_mut().zip(fresh) {
                // SAFETY: `run` returns buffers, and each is moved to its place and used only there. A length of 0 is at most
                // any buffer size.
                place.write(unsafe { buffer.assume_init_read().into_packet(0) });
            }
            // SAFETY: the loop has written packets to that many places.
            unsafe { burst.commit(fresh.len()) };
            if fresh.len() < MAGAZINE {
                break;
            }
        }
    }
}

impl Burst {
    /// Appends a packet with a copy of these bytes. Returns `false` if the burst has no room, the pool no buffer, or the buffer
    /// no room for so many bytes.
    ///
    /// ```
    /// use ringpass_memory::{Burst, Mempool, MempoolConfig};
    ///
    /// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
    /// let mut burst = Burst::new(1);
    /// assert!(burst.push_copy(&[1; 60], &mut pool.cache()));
    /// assert_eq!(burst[0].to_vec(), [1; 60]);
    /// assert!(!burst.push_copy(&[2; 60], &mut pool.cache()), "there is room for one");
    /// # Ok::<(), ringpass_memory::Error>(())
    /// ```
    pub fn push_copy(&mut self, bytes: &[u8], packets: &mut Cache) -> bool {
        let packet = packets.take(self.room().min(1)).next();
        let copied = packet.and_then(|mut packet| packet.copy_from(bytes).then_some(packet));
        copied.map(|packet| self.push(packet)).is_some()
    }
}

impl Mempool {
    /// Takes one empty packet. Returns `None`, and counts it, if no buffer is left. Queues use a [`Cache`],
    /// which is faster.
    pub fn alloc(&self) -> Option<Packet> {
        let mut burst = Burst::new(1);
        self.cache().alloc(&mut burst);
        burst.pop()
    }
}
