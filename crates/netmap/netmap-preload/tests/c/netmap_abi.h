/* netmap's binary interface on 64-bit little-endian Linux (API 14 and 15), written anew from its facts: numbers, names and
   layouts. The assertions at the end fix each size and offset; layout.c prints them for a comparison with the Rust layouts. */
#ifndef NETMAP_ABI_H
#define NETMAP_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/time.h>

/* Versions in a request's header: the one of this header, and the accepted range. */
#define NETMAP_API 14
#define NETMAP_MIN_API 14
#define NETMAP_MAX_API 15

/* ---- shared memory ---- */

struct netmap_slot {
    uint32_t buf_idx;
    uint16_t len;
    uint16_t flags; /* NS_ */
    uint64_t ptr;   /* address of an indirect buffer, or offset into the buffer */
};

enum {
    NS_BUF_CHANGED = 1 << 0, /* buf_idx is another one than before */
    NS_REPORT = 1 << 1,      /* report as soon as the slot is sent */
    NS_FORWARD = 1 << 2,     /* pass on to the other side, host or NIC */
    NS_NO_LEARN = 1 << 3,    /* a switch does not learn the source address */
    NS_INDIRECT = 1 << 4,    /* the frame lies at ptr */
    NS_MOREFRAG = 1 << 5,    /* the frame continues in the next slot */
    NS_TXMON = 1 << 6,       /* a monitor's frame that was sent, not received */
    NS_PORT_SHIFT = 8,
    NS_PORT_MASK = 0xff << NS_PORT_SHIFT,
};

/* In a received slot: how many slots of the frame are left, with this one. */
#define NS_RFRAGS(slot) ((slot)->flags >> 8 & 0xff)
#define NETMAP_MAX_FRAGS 64

struct netmap_ring {
    int64_t buf_ofs; /* from the ring to buffer 0 */
    uint32_t num_slots;
    uint32_t nr_buf_size;
    uint16_t ringid;
    uint16_t dir; /* 0: Tx, 1: Rx */
    uint32_t head, cur; /* the program's */
    uint32_t tail; /* netmap's */
    uint32_t flags; /* NR_TIMESTAMP, NR_FORWARD */
    struct timeval ts;
    uint64_t offset_mask; /* bits of a slot's ptr that are an offset */
    uint64_t buf_align;
    uint8_t sem[128] __attribute__((aligned(128)));
    struct netmap_slot slot[];
};

enum { NR_TIMESTAMP = 2, NR_FORWARD = 4 };

struct netmap_if {
    char ni_name[16];
    uint32_t ni_version;
    uint32_t ni_flags; /* NI_PRIV_MEM */
    uint32_t ni_tx_rings, ni_rx_rings; /* without those of the host */
    uint32_t ni_bufs_head; /* first extra buffer */
    uint32_t ni_host_tx_rings, ni_host_rx_rings;
    uint32_t ni_spare1[3];
    int64_t ring_ofs[]; /* from here to Tx, host Tx, Rx and host Rx rings */
};

enum { NI_PRIV_MEM = 1 };

/* ---- requests by NIOCCTRL ---- */

#define NETMAP_REQ_IFNAMSIZ 64
/* Most bytes of a body with all options. */
#define NETMAP_REQ_MAXSIZE 4096

struct nmreq_header {
    uint16_t nr_version;
    uint16_t nr_reqtype; /* NETMAP_REQ_ */
    uint32_t nr_reserved;
    char nr_name[NETMAP_REQ_IFNAMSIZ];
    uint64_t nr_options; /* address of the first option */
    uint64_t nr_body;    /* address of the body */
};

enum {
    NETMAP_REQ_REGISTER = 1,
    NETMAP_REQ_PORT_INFO_GET = 2,
    NETMAP_REQ_VALE_ATTACH = 3,
    NETMAP_REQ_VALE_DETACH = 4,
    NETMAP_REQ_VALE_LIST = 5,
    NETMAP_REQ_PORT_HDR_SET = 6,
    NETMAP_REQ_PORT_HDR_GET = 7,
    NETMAP_REQ_VALE_NEWIF = 8,
    NETMAP_REQ_VALE_DELIF = 9,
    NETMAP_REQ_VALE_POLLING_ENABLE = 10,
    NETMAP_REQ_VALE_POLLING_DISABLE = 11,
    NETMAP_REQ_POOLS_INFO_GET = 12,
    NETMAP_REQ_SYNC_KLOOP_START = 13,
    NETMAP_REQ_SYNC_KLOOP_STOP = 14,
    NETMAP_REQ_CSB_ENABLE = 15,
};

struct nmreq_register {
    uint64_t nr_offset;  /* out: of the netmap_if in the memory */
    uint64_t nr_memsize; /* out */
    uint32_t nr_tx_slots, nr_rx_slots;
    uint16_t nr_tx_rings, nr_rx_rings;
    uint16_t nr_host_tx_rings, nr_host_rx_rings;
    uint16_t nr_mem_id;
    uint16_t nr_ringid;
    uint32_t nr_mode; /* NR_REG_ */
    uint32_t nr_extra_bufs;
    uint64_t nr_flags;
};

enum {
    NR_REG_DEFAULT = 0,
    NR_REG_ALL_NIC = 1,
    NR_REG_SW = 2,
    NR_REG_NIC_SW = 3,
    NR_REG_ONE_NIC = 4,
    NR_REG_PIPE_MASTER = 5,
    NR_REG_PIPE_SLAVE = 6,
    NR_REG_NULL = 7,
    NR_REG_ONE_SW = 8,
};

enum {
    NR_MONITOR_TX = 0x100,
    NR_MONITOR_RX = 0x200,
    NR_ZCOPY_MON = 0x400,
    NR_EXCLUSIVE = 0x800,
    NR_RX_RINGS_ONLY = 0x2000,
    NR_TX_RINGS_ONLY = 0x4000,
    NR_ACCEPT_VNET_HDR = 0x8000,
    NR_DO_RX_POLL = 0x10000,
    NR_NO_TX_POLL = 0x20000,
};

struct nmreq_port_info_get {
    uint64_t nr_memsize;
    uint32_t nr_tx_slots, nr_rx_slots;
    uint16_t nr_tx_rings, nr_rx_rings;
    uint16_t nr_host_tx_rings, nr_host_rx_rings;
    uint16_t nr_mem_id;
    uint16_t pad[3];
};

struct nmreq_vale_attach {
    struct nmreq_register reg;
    uint32_t port_index; /* out */
    uint32_t pad1;
};

struct nmreq_vale_detach {
    uint32_t port_index; /* out */
    uint32_t pad1;
};

struct nmreq_vale_list {
    uint16_t nr_bridge_idx;
    uint16_t pad1;
    uint32_t nr_port_idx;
};

struct nmreq_port_hdr {
    uint32_t nr_hdr_len;
    uint32_t pad1;
};

struct nmreq_vale_newif {
    uint32_t nr_tx_slots, nr_rx_slots;
    uint16_t nr_tx_rings, nr_rx_rings;
    uint16_t nr_mem_id;
    uint16_t pad1;
};

struct nmreq_vale_polling {
    uint32_t nr_mode;
    uint32_t nr_first_cpu_id;
    uint32_t nr_num_polling_cpus;
    uint32_t pad1;
};

enum { NETMAP_POLLING_MODE_SINGLE_CPU = 1, NETMAP_POLLING_MODE_MULTI_CPU = 2 };

struct nmreq_pools_info {
    uint64_t nr_memsize;
    uint16_t nr_mem_id;
    uint16_t pad1[3];
    uint64_t nr_if_pool_offset;
    uint32_t nr_if_pool_objtotal, nr_if_pool_objsize;
    uint64_t nr_ring_pool_offset;
    uint32_t nr_ring_pool_objtotal, nr_ring_pool_objsize;
    uint64_t nr_buf_pool_offset;
    uint32_t nr_buf_pool_objtotal, nr_buf_pool_objsize;
};

struct nmreq_sync_kloop_start {
    uint32_t sleep_us;
    uint32_t pad1;
};

/* ---- options of requests ---- */

struct nmreq_option {
    uint64_t nro_next;    /* address of the next option */
    uint32_t nro_reqtype; /* NETMAP_REQ_OPT_ */
    uint32_t nro_status;  /* out: 0, or an errno */
    uint64_t nro_size;    /* of options whose size varies */
};

enum {
    NETMAP_REQ_OPT_EXTMEM = 1,
    NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS = 2,
    NETMAP_REQ_OPT_CSB = 3,
    NETMAP_REQ_OPT_SYNC_KLOOP_MODE = 4,
    NETMAP_REQ_OPT_OFFSETS = 5,
    NETMAP_REQ_OPT_MAX = 6,
};

struct nmreq_opt_extmem {
    struct nmreq_option nro_opt;
    uint64_t nro_usrptr;
    struct nmreq_pools_info nro_info;
};

struct nmreq_opt_sync_kloop_eventfds {
    struct nmreq_option nro_opt;
    struct {
        int32_t ioeventfd; /* wakes the loop */
        int32_t irqfd;     /* wakes the program */
    } eventfds[];
};

struct nmreq_opt_csb {
    struct nmreq_option nro_opt;
    uint64_t csb_atok, csb_ktoa; /* addresses of arrays with an entry for each ring */
};

struct nmreq_opt_sync_kloop_mode {
    struct nmreq_option nro_opt;
    uint32_t mode; /* NM_OPT_SYNC_KLOOP_ */
};

enum { NM_OPT_SYNC_KLOOP_DIRECT_TX = 1, NM_OPT_SYNC_KLOOP_DIRECT_RX = 2 };

struct nmreq_opt_offsets {
    struct nmreq_option nro_opt;
    uint64_t nro_max_offset, nro_initial_offset;
    uint32_t nro_offset_bits, nro_tx_align;
    uint64_t nro_min_gap;
};

/* Entries of the communication status block: what the program writes, and what netmap writes. */
struct nm_csb_atok {
    uint32_t head, cur;
    uint32_t appl_need_kick;
    uint32_t sync_flags;
    uint32_t pad[12];
};

struct nm_csb_ktoa {
    uint32_t hwcur, hwtail;
    uint32_t kern_need_kick;
    uint32_t pad[13];
};

/* ---- legacy requests ---- */

struct nmreq {
    char nr_name[16];
    uint32_t nr_version;
    uint32_t nr_offset, nr_memsize;
    uint32_t nr_tx_slots, nr_rx_slots;
    uint16_t nr_tx_rings, nr_rx_rings;
    uint16_t nr_ringid; /* a number, and NETMAP_ flags */
    uint16_t nr_cmd;    /* 0, or a command */
    uint16_t nr_arg1;
    uint16_t nr_arg2; /* number of the memory */
    uint32_t nr_arg3; /* extra buffers */
    uint32_t nr_flags; /* a mode in the lowest 4 bits, and flags */
    uint32_t spare2[1];
};

enum {
    NETMAP_RING_MASK = 0x0fff,
    NETMAP_NO_TX_POLL = 0x1000,
    NETMAP_SW_RING = 0x2000,
    NETMAP_HW_RING = 0x4000,
    NETMAP_DO_RX_POLL = 0x8000,
    NR_REG_MASK = 0xf,
};

enum {
    NETMAP_BDG_ATTACH = 1,
    NETMAP_BDG_DETACH = 2,
    NETMAP_BDG_REGOPS = 3,
    NETMAP_BDG_LIST = 4,
    NETMAP_BDG_VNET_HDR = 5,
    NETMAP_BDG_NEWIF = 6,
    NETMAP_BDG_DELIF = 7,
    NETMAP_PT_HOST_CREATE = 8,
    NETMAP_PT_HOST_DELETE = 9,
    NETMAP_BDG_POLLING_ON = 10,
    NETMAP_BDG_POLLING_OFF = 11,
    NETMAP_VNET_HDR_GET = 12,
};

enum { NETMAP_BDG_HOST = 1 };

struct nm_ifreq {
    char nifr_name[16];
    char data[256];
};

#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)
#define NIOCTXSYNC _IO('i', 148)
#define NIOCRXSYNC _IO('i', 149)
#define NIOCCONFIG _IOWR('i', 150, struct nm_ifreq)
#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)

/* ---- sizes and offsets ---- */

/* One line for each: STRUCT(name, size), FIELD(struct, field, offset), NUMBER(name, value). */
#define NETMAP_ABI_LAYOUT(STRUCT, FIELD, NUMBER) \
    STRUCT(netmap_slot, 16) \
    FIELD(netmap_slot, buf_idx, 0) \
    FIELD(netmap_slot, len, 4) \
    FIELD(netmap_slot, flags, 6) \
    FIELD(netmap_slot, ptr, 8) \
    STRUCT(netmap_ring, 256) \
    FIELD(netmap_ring, buf_ofs, 0) \
    FIELD(netmap_ring, num_slots, 8) \
    FIELD(netmap_ring, nr_buf_size, 12) \
    FIELD(netmap_ring, ringid, 16) \
    FIELD(netmap_ring, dir, 18) \
    FIELD(netmap_ring, head, 20) \
    FIELD(netmap_ring, cur, 24) \
    FIELD(netmap_ring, tail, 28) \
    FIELD(netmap_ring, flags, 32) \
    FIELD(netmap_ring, ts, 40) \
    FIELD(netmap_ring, offset_mask, 56) \
    FIELD(netmap_ring, buf_align, 64) \
    FIELD(netmap_ring, sem, 128) \
    FIELD(netmap_ring, slot, 256) \
    STRUCT(netmap_if, 56) \
    FIELD(netmap_if, ni_name, 0) \
    FIELD(netmap_if, ni_version, 16) \
    FIELD(netmap_if, ni_flags, 20) \
    FIELD(netmap_if, ni_tx_rings, 24) \
    FIELD(netmap_if, ni_rx_rings, 28) \
    FIELD(netmap_if, ni_bufs_head, 32) \
    FIELD(netmap_if, ni_host_tx_rings, 36) \
    FIELD(netmap_if, ni_host_rx_rings, 40) \
    FIELD(netmap_if, ring_ofs, 56) \
    STRUCT(nmreq_header, 88) \
    FIELD(nmreq_header, nr_version, 0) \
    FIELD(nmreq_header, nr_reqtype, 2) \
    FIELD(nmreq_header, nr_reserved, 4) \
    FIELD(nmreq_header, nr_name, 8) \
    FIELD(nmreq_header, nr_options, 72) \
    FIELD(nmreq_header, nr_body, 80) \
    STRUCT(nmreq_register, 56) \
    FIELD(nmreq_register, nr_offset, 0) \
    FIELD(nmreq_register, nr_memsize, 8) \
    FIELD(nmreq_register, nr_tx_slots, 16) \
    FIELD(nmreq_register, nr_rx_slots, 20) \
    FIELD(nmreq_register, nr_tx_rings, 24) \
    FIELD(nmreq_register, nr_rx_rings, 26) \
    FIELD(nmreq_register, nr_host_tx_rings, 28) \
    FIELD(nmreq_register, nr_host_rx_rings, 30) \
    FIELD(nmreq_register, nr_mem_id, 32) \
    FIELD(nmreq_register, nr_ringid, 34) \
    FIELD(nmreq_register, nr_mode, 36) \
    FIELD(nmreq_register, nr_extra_bufs, 40) \
    FIELD(nmreq_register, nr_flags, 48) \
    STRUCT(nmreq_port_info_get, 32) \
    FIELD(nmreq_port_info_get, nr_memsize, 0) \
    FIELD(nmreq_port_info_get, nr_tx_slots, 8) \
    FIELD(nmreq_port_info_get, nr_rx_slots, 12) \
    FIELD(nmreq_port_info_get, nr_tx_rings, 16) \
    FIELD(nmreq_port_info_get, nr_rx_rings, 18) \
    FIELD(nmreq_port_info_get, nr_host_tx_rings, 20) \
    FIELD(nmreq_port_info_get, nr_host_rx_rings, 22) \
    FIELD(nmreq_port_info_get, nr_mem_id, 24) \
    STRUCT(nmreq_vale_attach, 64) \
    FIELD(nmreq_vale_attach, port_index, 56) \
    STRUCT(nmreq_vale_detach, 8) \
    STRUCT(nmreq_vale_list, 8) \
    FIELD(nmreq_vale_list, nr_port_idx, 4) \
    STRUCT(nmreq_port_hdr, 8) \
    STRUCT(nmreq_vale_newif, 16) \
    FIELD(nmreq_vale_newif, nr_tx_rings, 8) \
    FIELD(nmreq_vale_newif, nr_mem_id, 12) \
    STRUCT(nmreq_vale_polling, 16) \
    FIELD(nmreq_vale_polling, nr_num_polling_cpus, 8) \
    STRUCT(nmreq_pools_info, 64) \
    FIELD(nmreq_pools_info, nr_memsize, 0) \
    FIELD(nmreq_pools_info, nr_mem_id, 8) \
    FIELD(nmreq_pools_info, nr_if_pool_offset, 16) \
    FIELD(nmreq_pools_info, nr_if_pool_objtotal, 24) \
    FIELD(nmreq_pools_info, nr_if_pool_objsize, 28) \
    FIELD(nmreq_pools_info, nr_ring_pool_offset, 32) \
    FIELD(nmreq_pools_info, nr_ring_pool_objtotal, 40) \
    FIELD(nmreq_pools_info, nr_ring_pool_objsize, 44) \
    FIELD(nmreq_pools_info, nr_buf_pool_offset, 48) \
    FIELD(nmreq_pools_info, nr_buf_pool_objtotal, 56) \
    FIELD(nmreq_pools_info, nr_buf_pool_objsize, 60) \
    STRUCT(nmreq_sync_kloop_start, 8) \
    STRUCT(nmreq_option, 24) \
    FIELD(nmreq_option, nro_next, 0) \
    FIELD(nmreq_option, nro_reqtype, 8) \
    FIELD(nmreq_option, nro_status, 12) \
    FIELD(nmreq_option, nro_size, 16) \
    STRUCT(nmreq_opt_extmem, 96) \
    FIELD(nmreq_opt_extmem, nro_usrptr, 24) \
    FIELD(nmreq_opt_extmem, nro_info, 32) \
    STRUCT(nmreq_opt_sync_kloop_eventfds, 24) \
    FIELD(nmreq_opt_sync_kloop_eventfds, eventfds, 24) \
    STRUCT(nmreq_opt_csb, 40) \
    FIELD(nmreq_opt_csb, csb_atok, 24) \
    FIELD(nmreq_opt_csb, csb_ktoa, 32) \
    STRUCT(nmreq_opt_sync_kloop_mode, 32) \
    FIELD(nmreq_opt_sync_kloop_mode, mode, 24) \
    STRUCT(nmreq_opt_offsets, 56) \
    FIELD(nmreq_opt_offsets, nro_max_offset, 24) \
    FIELD(nmreq_opt_offsets, nro_initial_offset, 32) \
    FIELD(nmreq_opt_offsets, nro_offset_bits, 40) \
    FIELD(nmreq_opt_offsets, nro_tx_align, 44) \
    FIELD(nmreq_opt_offsets, nro_min_gap, 48) \
    STRUCT(nm_csb_atok, 64) \
    FIELD(nm_csb_atok, head, 0) \
    FIELD(nm_csb_atok, cur, 4) \
    FIELD(nm_csb_atok, appl_need_kick, 8) \
    FIELD(nm_csb_atok, sync_flags, 12) \
    STRUCT(nm_csb_ktoa, 64) \
    FIELD(nm_csb_ktoa, hwcur, 0) \
    FIELD(nm_csb_ktoa, hwtail, 4) \
    FIELD(nm_csb_ktoa, kern_need_kick, 8) \
    STRUCT(nmreq, 60) \
    FIELD(nmreq, nr_name, 0) \
    FIELD(nmreq, nr_version, 16) \
    FIELD(nmreq, nr_offset, 20) \
    FIELD(nmreq, nr_memsize, 24) \
    FIELD(nmreq, nr_tx_slots, 28) \
    FIELD(nmreq, nr_rx_slots, 32) \
    FIELD(nmreq, nr_tx_rings, 36) \
    FIELD(nmreq, nr_rx_rings, 38) \
    FIELD(nmreq, nr_ringid, 40) \
    FIELD(nmreq, nr_cmd, 42) \
    FIELD(nmreq, nr_arg1, 44) \
    FIELD(nmreq, nr_arg2, 46) \
    FIELD(nmreq, nr_arg3, 48) \
    FIELD(nmreq, nr_flags, 52) \
    STRUCT(nm_ifreq, 272) \
    NUMBER(NIOCGINFO, 0xc03c6991) \
    NUMBER(NIOCREGIF, 0xc03c6992) \
    NUMBER(NIOCTXSYNC, 0x6994) \
    NUMBER(NIOCRXSYNC, 0x6995) \
    NUMBER(NIOCCONFIG, 0xc1106996) \
    NUMBER(NIOCCTRL, 0xc0586997)

#define NETMAP_ABI_STRUCT(name, size) _Static_assert(sizeof(struct name) == (size), #name);
#define NETMAP_ABI_FIELD(name, field, offset) _Static_assert(offsetof(struct name, field) == (offset), #name "." #field);
#define NETMAP_ABI_NUMBER(name, value) _Static_assert((name) == (value), #name);

NETMAP_ABI_LAYOUT(NETMAP_ABI_STRUCT, NETMAP_ABI_FIELD, NETMAP_ABI_NUMBER)

#endif
