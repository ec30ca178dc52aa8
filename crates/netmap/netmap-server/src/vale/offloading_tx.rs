//! The sending queue of a port, with the offloads that its programs lack.

use std::sync::Arc;

use ringpass_memory::{Burst, Flags, Mempool};
use ringpass_port::{SoftwareOffload, TxQueue};

use super::Shared;
use super::tx::Tx;

/// The sending queue of a port, which does in software what packets request and programs cannot do: everything, unless there are
/// headers.
pub(crate) struct OffloadingTx {
    tx: SoftwareOffload<Tx>,
    shared: Arc<Shared>,
    header_len: usize,
}

impl OffloadingTx {
    pub(crate) fn new(shared: &Arc<Shared>, pool: &Mempool) -> Self {
        let tx = SoftwareOffload::new(Tx::new(shared), Flags::default(), pool);
        Self { tx, shared: shared.clone(), header_len: 0 }
    }
}

impl TxQueue for OffloadingTx {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let header_len = self.shared.header_len();
        if header_len != self.header_len {
            self.header_len = header_len;
            self.tx.set_hardware(if header_len > 0 { Flags::CHECKSUM.or(Flags::TSO) } else { Flags::default() });
        }
        self.tx.tx_burst(burst)
    }
}
