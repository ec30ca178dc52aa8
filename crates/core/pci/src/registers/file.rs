//! The register file of a model: implements the access kinds of the table.

use super::{AccessKind, Row};

/// The register that an access hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegIndex {
    /// Index of the row in its table; the same index in the table's `Id::ALL`.
    pub row: usize,
    /// Index in the array; 0 for a single register.
    pub index: usize,
}

/// The values of all registers of a table.
pub struct RegisterFile {
    table: &'static [Row],
    values: Vec<u32>,
    /// Values after reset.
    initial: Vec<u32>,
    /// For each 32-bit word, its row's index plus one; 0 where there is no register.
    rows: Vec<u16>,
}

impl RegisterFile {
    /// Creates a file with all registers at their values after reset.
    pub fn new(table: &'static [Row]) -> Self {
        let words = table.iter().map(|row| row.at(row.count - 1) / 4 + 1).max().unwrap_or(0);
        let (mut initial, mut rows) = (vec![0; words as usize], vec![0; words as usize]);
        for (r, row) in table.iter().enumerate() {
            for i in 0..row.count {
                let word = (row.at(i) / 4) as usize;
                (initial[word], rows[word]) = (row.reset, r as u16 + 1);
            }
        }
        Self { table, values: initial.clone(), initial, rows }
    }

    /// Sets all registers to their values after reset.
    pub fn reset(&mut self) {
        self.values.copy_from_slice(&self.initial);
    }

    /// Returns the register at an offset; `None` between registers and if the offset is not aligned.
    pub fn find(&self, offset: u32) -> Option<RegIndex> {
        let r = *self.rows.get((offset / 4) as usize).filter(|_| offset.is_multiple_of(4))?;
        let row = (r as usize).checked_sub(1)?;
        let Row { offset: first, stride, count, second_half, .. } = self.table[row];
        let index = match second_half {
            Some(start) if offset >= start => count / 2 + (offset - start) / stride,
            _ => (offset - first) / stride,
        };
        Some(RegIndex { row, index: index as usize })
    }

    /// Performs a driver's read, with its side effects. Unknown offsets read 0.
    pub fn read(&mut self, offset: u32) -> u32 {
        let Some(access) = self.find(offset) else { return 0 };
        let value = &mut self.values[(offset / 4) as usize];
        match self.table[access.row].kind {
            AccessKind::WO => 0,
            AccessKind::RC => std::mem::take(value),
            AccessKind::RO | AccessKind::RW | AccessKind::DMA | AccessKind::W1C | AccessKind::W1S => *value,
        }
    }

    /// Performs a driver's write, with its side effects. Writes to unknown offsets are ignored.
    pub fn write(&mut self, offset: u32, written: u32) {
        let Some(access) = self.find(offset) else { return };
        let value = &mut self.values[(offset / 4) as usize];
        match self.table[access.row].kind {
            AccessKind::RO | AccessKind::RC => {}
            AccessKind::WO => *value = written,
            AccessKind::RW | AccessKind::DMA => {
                let Row { writable, self_clearing, .. } = self.table[access.row];
                *value = (*value & !writable | written & writable) & !self_clearing;
            }
            AccessKind::W1C => *value &= !written,
            AccessKind::W1S => *value |= written,
        }
    }

    /// Returns a register's value to the device itself, without side effects.
    pub fn get(&self, offset: u32) -> u32 {
        self.values.get((offset / 4) as usize).copied().unwrap_or(0)
    }

    /// Sets a register's value for the device itself, whatever the access kind.
    pub fn set(&mut self, offset: u32, value: u32) {
        if let Some(cell) = self.values.get_mut((offset / 4) as usize) {
            *cell = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(dead_code, reason = "a row is tested by its offset too")]
    mod table {
        crate::registers! {
            size 0x100;
            ID      0x00         RO = 0x1234     "Identification";
            CONTROL 0x04         RW clears 0x8   "Control";
            DROPS   0x10 + 8 * 4 RC              "Drops";
            CAUSE   0x14         W1C = 0xff      "Cause";
            MASK    0x40         W1S             "Mask";
            UNMASK  0x44         WO              "Unmask";
            BASE    0x48         DMA             "Base address";
            LENGTH  0x4C         RW bits 0xff80 = 0x1 "Length";
            TAIL    0x80 + 8 * 2, 0xC0 RW        "Tails";
        }
    }

    #[test]
    fn each_kind_does_what_it_says() {
        let mut file = RegisterFile::new(table::TABLE);
        file.write(0x00, 1);
        assert_eq!(file.read(0x00), 0x1234, "RO");
        file.write(0x04, 0xf);
        assert_eq!(file.read(0x04), 0x7, "RW, with a self-clearing bit");
        file.set(table::DROPS.at(3).offset, 7);
        assert_eq!((file.read(0x28), file.read(0x28)), (7, 0), "RC");
        file.write(0x14, 0x0f);
        assert_eq!(file.read(0x14), 0xf0, "W1C");
        file.write(0x40, 1);
        file.write(0x40, 2);
        file.write(0x40, 0);
        assert_eq!(file.read(0x40), 3, "W1S");
        file.write(0x44, 3);
        assert_eq!((file.read(0x44), file.get(0x44)), (0, 3), "WO");
        file.write(0x4c, 0xffff_ffff);
        assert_eq!(file.read(0x4c), 0xff81, "RW, with bits that are not");
        file.reset();
        assert_eq!(file.read(0x14), 0xff, "reset");
    }

    #[test]
    fn an_array_may_lie_in_two_halves() {
        assert_eq!([0, 1, 2, 3].map(|i| table::TAIL.at(i).offset), [0x80, 0x88, 0xc0, 0xc8]);
        let mut file = RegisterFile::new(table::TABLE);
        (0..4).for_each(|i| file.write(table::TAIL.at(i).offset, i as u32 + 1));
        for i in 0..4 {
            let offset = table::TAIL.at(i).offset;
            assert_eq!((file.read(offset), file.find(offset).map(|access| access.index)), (i as u32 + 1, Some(i)));
        }
        assert_eq!(file.find(0x90), None);
    }

    #[test]
    fn offsets_are_found() {
        let file = RegisterFile::new(table::TABLE);
        assert_eq!(file.find(0x28), Some(RegIndex { row: 2, index: 3 }));
        assert_eq!(table::Id::ALL[2], table::Id::DROPS);
        assert_eq!((file.find(0x0c), file.find(0x05), file.find(0x1000)), (None, None, None));
    }
}
