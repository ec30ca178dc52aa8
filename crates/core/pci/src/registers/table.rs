//! The macro that declares register tables, and the types of their entries.

use std::marker::PhantomData;

/// Effect of an access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads return the device's value; writes are ignored.
    RO,
    /// Reads return what was written, except for the row's self-clearing bits, which read 0.
    RW,
    /// Like `RO`, but a read clears the register.
    RC,
    /// Writes have an effect; reads return 0.
    WO,
    /// Bits written as 1 are cleared; zeros have no effect.
    W1C,
    /// Bits written as 1 are set; zeros have no effect.
    W1S,
    /// Like `RW`, but the value is an address that the device will access by DMA.
    DMA,
}

/// One row of a table: a register, or an array of registers of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in the datasheet.
    pub name: &'static str,
    /// Offset in the BAR, in bytes.
    pub offset: u32,
    /// Distance from one register of the array to the next, in bytes.
    pub stride: u32,
    /// Number of registers in the array; 1 for a single register.
    pub count: u32,
    /// Offset of the second half of the array, if it does not follow the first.
    pub second_half: Option<u32>,
    /// Effect of accesses.
    pub kind: AccessKind,
    /// Bits that software can write (`RW`, `DMA`); the others keep their value.
    pub writable: u32,
    /// Bits that clear themselves after a write (`RW`).
    pub self_clearing: u32,
    /// Value after reset.
    pub reset: u32,
    /// Description and section in the datasheet.
    pub description: &'static str,
}

impl Row {
    /// Returns the offset in the BAR of register `index` of the array, in bytes.
    pub const fn at(&self, index: u32) -> u32 {
        match self.second_half {
            Some(start) if index >= self.count / 2 => start + self.stride * (index - self.count / 2),
            _ => self.offset + self.stride * index,
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $doc:literal: $($access:ident)*;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $kind;
        $(impl $access for $kind {})*
    )*};
}

/// Access kinds whose reads return a meaningful value.
pub trait Readable {}
/// Access kinds whose writes have an effect and start no DMA.
pub trait Writable {}

kinds! {
    RO "See [`AccessKind::RO`].": Readable;
    RW "See [`AccessKind::RW`].": Readable Writable;
    RC "See [`AccessKind::RC`].": Readable;
    WO "See [`AccessKind::WO`].": Writable;
    W1C "See [`AccessKind::W1C`].": Readable Writable;
    W1S "See [`AccessKind::W1S`].": Readable Writable;
    DMA "See [`AccessKind::DMA`]. Written only by [`Window::write_dma`](crate::registers::Window::write_dma).": Readable;
}

/// A register with its access kind.
#[derive(Clone, Copy, Debug)]
pub struct Reg<K> {
    /// Name in the datasheet.
    pub name: &'static str,
    /// Offset in the BAR, in bytes.
    pub offset: u32,
    kind: PhantomData<K>,
}

impl<K> Reg<K> {
    #[doc(hidden)]
    pub const fn new(name: &'static str, offset: u32) -> Self {
        Self { name, offset, kind: PhantomData }
    }
}

/// An array of registers with their access kind.
#[derive(Clone, Copy, Debug)]
pub struct RegArray<K> {
    row: Row,
    kind: PhantomData<K>,
}

impl<K> RegArray<K> {
    #[doc(hidden)]
    pub const fn new(row: Row) -> Self {
        Self { row, kind: PhantomData }
    }

    /// Returns register `index`.
    ///
    /// # Panics
    /// If `index` is not below the array's length.
    pub const fn at(&self, index: usize) -> Reg<K> {
        assert!(index < self.row.count as usize, "register array index");
        Reg::new(self.row.name, self.row.at(index as u32))
    }
}

/// Declares a device's registers, one per line:
///
/// ```text
/// NAME  offset [+ stride * count [, offset]]  KIND [bits writable] [clears bits] [= value after reset]
///         "description, section";
/// ```
///
/// A second offset is where the second half of an array starts, which has `count` registers as well. The macro
/// makes a constant [`Reg`] or [`RegArray`] for each line, an enum `Id` of all names, and `TABLE`. It checks at
/// compile time that offsets are aligned, lie inside the BAR of `size` bytes and do not overlap.
#[macro_export]
macro_rules! registers {
    (size $size:literal; $($name:ident $offset:literal
        $(+ $stride:literal * $count:literal $(, $second:literal)?)? $kind:ident $(bits $bits:literal)?
        $(clears $sc:literal)? $(= $reset:literal)? $doc:literal;)*) => {
        /// Names of all registers, in the table's order.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Id { $(#[doc = $doc] $name,)* }

        impl Id {
            /// All names, in the table's order.
            pub const ALL: &[Id] = &[$(Id::$name,)*];
        }

        $($crate::registers!(@const $name $offset ($($stride $count $($second)?)?) $kind $doc);)*

        /// All rows.
        pub static TABLE: &[$crate::registers::Row] = ROWS;
        const ROWS: &[$crate::registers::Row] = &[$($crate::registers!(
            @row $name $offset ($($stride $count $($second)?)?) $kind (u32::MAX $(& $bits)?) (0 $(+ $sc)?) (0 $(+ $reset)?) $doc),)*];
        const _: () = $crate::registers::assert_disjoint::<{ $size / 4 }>(ROWS);
    };
    (@const $name:ident $offset:literal () $kind:ident $doc:literal) => {
        #[doc = $doc]
        pub const $name: $crate::registers::Reg<$crate::registers::$kind> = $crate::registers::Reg::new(stringify!($name), $offset);
    };
    (@const $name:ident $offset:literal $array:tt $kind:ident $doc:literal) => {
        #[doc = $doc]
        pub const $name: $crate::registers::RegArray<$crate::registers::$kind> = $crate::registers::RegArray::new(
            $crate::registers!(@row $name $offset $array $kind (0) (0) (0) $doc));
    };
    (@row $name:ident $offset:literal () $kind:ident $bits:tt $sc:tt $reset:tt $doc:literal) => {
        $crate::registers!(@row $name $offset (4 1) $kind $bits $sc $reset $doc)
    };
    (@row $name:ident $offset:literal ($stride:literal $count:literal $($second:literal)?) $kind:ident $bits:tt $sc:tt
        $reset:tt $doc:literal) => {
        $crate::registers::Row { name: stringify!($name), offset: $offset, stride: $stride,
            count: $crate::registers!(@count $count $($second)?), second_half: $crate::registers!(@second $($second)?),
            kind: $crate::registers::AccessKind::$kind, writable: $bits, self_clearing: $sc, reset: $reset, description: $doc }
    };
    (@count $count:literal) => { $count };
    (@count $count:literal $second:literal) => { 2 * $count };
    (@second) => { None };
    (@second $second:literal) => { Some($second) };
}

/// Fails compilation if registers overlap, are unaligned or lie outside of `WORDS` words.
#[allow(long_running_const_eval)]
pub const fn assert_disjoint<const WORDS: usize>(rows: &[Row]) {
    let mut taken = [false; WORDS];
    let mut r = 0;
    while r < rows.len() {
        let mut i = 0;
        while i < rows[r].count {
            let offset = rows[r].at(i);
            assert!(offset.is_multiple_of(4), "a register that is not aligned");
            assert!(!taken[offset as usize / 4], "two registers at one offset");
            taken[offset as usize / 4] = true;
            i += 1;
        }
        r += 1;
    }
}
