//! A model's registers: the table's access kinds, acted out.

use crate::{Kind, Row};

/// Which register an access hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Index of the row in its table; the same index in the table's `Id::ALL`.
    pub row: usize,
    /// Index in the array; 0 for a single register.
    pub index: usize,
}

/// The values of all registers of a table.
pub struct RegisterFile {
    table: &'static [Row],
    values: Vec<u32>,
    /// Row of each word, plus one; 0 where there is none.
    rows: Vec<u16>,
}

impl RegisterFile {
    /// All registers at their values after reset.
    pub fn new(table: &'static [Row]) -> Self {
        let words = table.iter().map(|row| (row.offset + row.stride * (row.count - 1)) / 4 + 1).max().unwrap_or(0);
        let mut file = Self { table, values: vec![0; words as usize], rows: vec![0; words as usize] };
        for (r, row) in table.iter().enumerate() {
            (0..row.count).for_each(|i| file.rows[((row.offset + row.stride * i) / 4) as usize] = r as u16 + 1);
        }
        file.reset();
        file
    }

    /// Brings all registers to their values after reset.
    pub fn reset(&mut self) {
        for row in self.table {
            (0..row.count).for_each(|i| self.values[((row.offset + row.stride * i) / 4) as usize] = row.reset);
        }
    }

    /// Which register lies at an offset; `None` between registers and where the offset is not aligned.
    pub fn find(&self, offset: u32) -> Option<Access> {
        let r = *self.rows.get((offset / 4) as usize).filter(|_| offset.is_multiple_of(4))?;
        let row = (r as usize).checked_sub(1)?;
        let index = ((offset - self.table[row].offset) / self.table[row].stride) as usize;
        Some(Access { row, index })
    }

    /// A driver's read, with its side effects. Unknown offsets read 0.
    pub fn read(&mut self, offset: u32) -> u32 {
        let Some(access) = self.find(offset) else { return 0 };
        let value = &mut self.values[(offset / 4) as usize];
        match self.table[access.row].kind {
            Kind::WO => 0,
            Kind::RC => std::mem::take(value),
            Kind::RO | Kind::RW | Kind::DMA | Kind::W1C | Kind::W1S => *value,
        }
    }

    /// A driver's write, with its side effects. Unknown offsets ignore it.
    pub fn write(&mut self, offset: u32, written: u32) {
        let Some(access) = self.find(offset) else { return };
        let value = &mut self.values[(offset / 4) as usize];
        match self.table[access.row].kind {
            Kind::RO | Kind::RC => {}
            Kind::WO => *value = written,
            Kind::RW | Kind::DMA => *value = written & !self.table[access.row].self_clearing,
            Kind::W1C => *value &= !written,
            Kind::W1S => *value |= written,
        }
    }

    /// The device's own look, without side effects.
    pub fn get(&self, offset: u32) -> u32 {
        self.values.get((offset / 4) as usize).copied().unwrap_or(0)
    }

    /// The device's own change, whatever the access kind.
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
        file.reset();
        assert_eq!(file.read(0x14), 0xff, "reset");
    }

    #[test]
    fn offsets_are_found() {
        let file = RegisterFile::new(table::TABLE);
        assert_eq!(file.find(0x28), Some(Access { row: 2, index: 3 }));
        assert_eq!(table::Id::ALL[2], table::Id::DROPS);
        assert_eq!((file.find(0x0c), file.find(0x05), file.find(0x1000)), (None, None, None));
    }
}
