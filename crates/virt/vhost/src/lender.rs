//! The lender of a virtqueue: what a NIC queue calls that borrows the guest's buffers.

use std::sync::Arc;

use ringpass_memory::Loans;
use ringpass_port::lending::{Lender, Lending};

use crate::fault::FaultLog;
use crate::vring::{Running, Vring, with_ring};

/// Lender of one virtqueue's buffers.
pub(crate) struct VringLender {
    vrings: Arc<[Vring]>,
    number: usize,
    faults: Arc<FaultLog>,
}

impl VringLender {
    pub(crate) fn lending(number: usize, vrings: &Arc<[Vring]>, faults: &Arc<FaultLog>) -> Arc<Lending> {
        Lending::new(Box::new(Self { vrings: vrings.clone(), number, faults: faults.clone() }))
    }
}

impl Lender for VringLender {
    fn lend(&self, loans: &mut Loans<'_>) {
        let Some(mut state) = self.vrings[self.number].try_lock_datapath() else { return };
        let Some(running) = state.active() else { return };
        let Running { ring, negotiated, mapped: Some(mapped), turns, .. } = running else { return };
        if loans.pool() != mapped.lent {
            return;
        }
        let turn = turns.begin();
        let result = with_ring!(ring, ring => mapped.lend(ring, negotiated, loans));
        if let Err(fault) = result.and(turns.end(turn)) {
            running.broken = true;
            self.faults.report(self.number, &fault);
        }
    }
}
