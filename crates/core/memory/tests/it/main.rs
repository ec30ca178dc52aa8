//! Regions, pools, packets and bursts by their public interface.

mod burst;
mod common;
mod dma_map;
mod foreign;
mod huge_pages;
mod metadata;
mod no_alloc;
mod out_of_order;
mod packet;
mod pool;
mod region;
mod threads;
