//! Ports of the host: TAPs, packet sockets, capture files, cables and decorators.

mod allocation;
mod cable;
mod capture;
mod capture_file;
mod common;
mod faults;
mod fuzz;
mod offloads;
mod packet_socket;
mod pcap;
mod tap;
mod waiting;
mod xdp;
