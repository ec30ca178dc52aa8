//! Lies that the 82599 model can tell.

use crate::lies::kinds;

/// Lies of a NIC.
pub type Lies = crate::lies::Lies<Lie>;

/// Lies that keep a NIC from ever becoming ready.
const NEVER_READY: &[Lie] = &[Lie::EepromNever, Lie::ResetNever, Lie::InitNever, Lie::EnableNever];

kinds! {
    "never-ready" NEVER_READY, DmaOutside;
    LengthLong "length-long" "Rx: a length beyond the buffer.";
    LengthZero "length-zero" "Rx: a length of 0.";
    NoData "no-data" "Rx: DD is set, and nothing was written to the buffer.";
    NoEop "no-eop" "Rx: the frame never ends.";
    OutOfOrder "out-of-order" "Rx: the descriptor behind the next one is written back first.";
    DdCleared "dd-cleared" "Rx: DD is taken back when the next frame comes.";
    RxStuck "rx-stuck" "Rx: no frame is delivered.";
    TxStuck "tx-stuck" "Tx: no frame is sent, none reported.";
    WrongHead "wrong-head" "Tx: the head that is written back is not the head.";
    Removed "removed" "The card has gone: registers read 0xffffffff, writes and memory do nothing.";
    EepromNever "eeprom-never" "The EEPROM is never ready.";
    ResetNever "reset-never" "A reset is never done.";
    InitNever "init-never" "The DMA's initialisation is never done.";
    EnableNever "enable-never" "No queue is ever enabled, as far as its register says.";
    DisableNever "disable-never" "No queue is ever disabled.";
    MasterNever "master-never" "The card never stops to be master.";
    LinkFlap "link-flap" "The link goes down for a while.";
    InterruptLost "interrupt-lost" "A message is not sent.";
    InterruptStorm "interrupt-storm" "All messages are sent in each round.";
    DmaOutside "dma-outside" "Rx: memory is written to at an address of the configuration.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lies::{Kind, When};

    #[test]
    fn what_is_written_is_read() {
        let lies: Lies =
            "no-eop@100-100+removed@5000+length-long%0.25+dma-outside@7=0xdead0000+seed=9".parse().unwrap();
        assert_eq!(lies.when(Lie::NoEop), Some(When { first: 100, last: 100, chance: 1.0 }));
        assert_eq!(lies.when(Lie::Removed), Some(When { first: 5000, ..When::default() }));
        assert_eq!(lies.when(Lie::LengthLong), Some(When { chance: 0.25, ..When::default() }));
        assert_eq!((lies.when(Lie::NoData), lies.address, lies.seed), (None, 0xdead_0000, 9));
        assert_eq!(lies.to_string().parse(), Ok(lies));
        for &lie in Lie::ALL {
            let lies = Lies { address: 16, ..Lies::default() }.with(lie, When::default());
            assert_eq!(
                lies.to_string().parse(),
                Ok(Lies { address: if lie == Lie::DmaOutside { 16 } else { 0 }, ..lies })
            );
        }
        assert!(Lie::GROUP.1.iter().all(|&lie| "never-ready".parse::<Lies>().unwrap().when(lie).is_some()));
    }

    #[test]
    fn nonsense_gets_one_line() {
        for text in
            ["", "truth", "no-eop@x", "no-eop@3-", "no-eop%2", "no-eop%", "no-eop=3", "dma-outside", "seed=", "+"]
        {
            let error = text.parse::<Lies>().expect_err(text);
            assert!(!error.contains('\n') && !error.is_empty());
        }
    }
}
