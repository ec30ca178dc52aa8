/* Ringpass: packet I/O in user space. Made by cbindgen from crates/ringpass-c/src; edit it there.

   A program opens ports, asks them for their queues, and moves packets between these:

     const char *addresses[] = {"tap:a", "model:null"};
     struct ringpass_ports *ports;
     struct ringpass_queue *queue;
     struct ringpass_packet packets[32];
     if (ringpass_open(addresses, 2, NULL, &ports) < 0 || ringpass_port_queue(ports, 0, 0, &queue) < 0)
         errx(1, "%s", ringpass_error());
     int received = ringpass_receive(queue, packets, 32);
     ringpass_free(packets, received);
     ringpass_close(ports);

   Results. A function that can fail returns an int: 0 or a number, or below 0 one of the codes that follow. ringpass_error()
   has the text, with cause and remedy. Invalid arguments that can be noticed (NULL, no such port) are errors, too.

   Threads. A queue, and what is called with it, belongs to one thread at a time; different queues may be used by different
   threads at once. A packet belongs to whoever holds it, and may be sent or freed by any thread. Functions of ports lock
   what they use and may be called by any thread, except ringpass_close, after which nothing of the ports may be used.

   Frames are bytes in a pool that all ports of one ringpass_open share, and are not copied between them. Where a peer has
   that memory, too (vfio-user:, virtio-user:, vale0:, netmap:), it may write to a frame at any time, even while the program
   reads it. Never check bytes in place there and use them afterwards: ringpass_copy first, then work on the copy.

   The library handles SIGBUS for its own memory, as such peers can take pages of shared memory away. It starts no program
   and, except for models (model:) and sessions of sockets (vhost:, virtio-user:), no thread. */

#ifndef RINGPASS_H
#define RINGPASS_H



#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 An error without a code of its own; ringpass_error() tells.
 */
#define RINGPASS_FAILED -1

/*
 A malformed address, a number out of its range, or an argument that is NULL or names nothing.
 */
#define RINGPASS_INVALID -2

/*
 There is no such device, interface, file or peer.
 */
#define RINGPASS_NOT_FOUND -3

/*
 This user may not do that.
 */
#define RINGPASS_PERMISSION -4

/*
 Somebody else uses it.
 */
#define RINGPASS_BUSY -5

/*
 There is too little memory, or there are too few huge pages.
 */
#define RINGPASS_NO_MEMORY -6

/*
 The device, interface or peer behind a port has disappeared.
 */
#define RINGPASS_GONE -7

/*
 A defect of Ringpass; please report it. The ports should be closed.
 */
#define RINGPASS_BUG -8

/*
 Huge pages of 2 MiB if enough are free, otherwise ordinary ones, with a notice. The default.
 */
#define RINGPASS_PAGES_ANY 0

/*
 Ordinary pages.
 */
#define RINGPASS_PAGES_ORDINARY 1

/*
 Huge pages of 2 MiB.
 */
#define RINGPASS_PAGES_2M 2

/*
 Huge pages of 1 GiB.
 */
#define RINGPASS_PAGES_1G 3

/*
 Configuration of what ringpass_open opens. It starts with defaults that suit most programs, and can be changed by the
 functions ringpass_config_set_…; numbers out of range make ringpass_open fail. It belongs to one thread at a time.
 */
struct ringpass_config;

/*
 Ports that were opened together, with the pool that their packets come from.
 */
struct ringpass_ports;

/*
 A pair of a receiving and a sending queue, of one port. It belongs to one thread at a time.
 */
struct ringpass_queue;

/*
 Receives a notice: one line about something that was chosen on its own, such as ordinary pages in place of huge ones, and how
 to get the better one. `text` is valid during the call.
 */
typedef void (*ringpass_notice)(const char *text, void *user);

/*
 A packet: a handle that owns a buffer with an Ethernet frame, without its CRC. It may be copied like any struct as long as
 only one copy is used. It ends by being sent or freed; each packet must, before ringpass_close.
 */
struct ringpass_packet {
  /*
   First byte of the frame. `length` bytes may be read, and ringpass_capacity() written. Only functions change this pointer.
   */
  uint8_t *data;
  /*
   Length of the frame in bytes. May be set, up to ringpass_capacity(), unless the frame continues in further buffers.
   */
  uint32_t length;
  /*
   Length of the whole frame, as it was received. Above `length` if it continues in further buffers, which happens only with an
   MTU above 2030; ringpass_copy reads these, too.
   */
  uint32_t total;
  /*
   The library's own. Zeros: no packet.
   */
  void *handle[2];
};

/*
 State of a port's link.
 */
struct ringpass_link {
  /*
   Whether there is a link.
   */
  bool up;
  /*
   Speed in Mbit/s; 0 where that is meaningless.
   */
  uint32_t mbps;
};

/*
 Counters of a port since it was opened. Bytes are those of the frames, without CRC.
 */
struct ringpass_stats {
  /*
   Frames received.
   */
  uint64_t rx_packets;
  /*
   Bytes received.
   */
  uint64_t rx_bytes;
  /*
   Frames that arrived and were lost: no descriptor or buffer was free, or the frame was faulty.
   */
  uint64_t rx_drops;
  /*
   Frames sent.
   */
  uint64_t tx_packets;
  /*
   Bytes sent.
   */
  uint64_t tx_bytes;
  /*
   Frames that were taken for sending and not sent.
   */
  uint64_t tx_drops;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the last error of this thread: one line, with cause and remedy; "" if there was none. It is valid until
 the next error of this thread, or its end.
 */
const char *ringpass_error(void);

/*
 Returns the version of the library, such as "0.1.0".
 */
const char *ringpass_version(void);

/*
 Returns a new configuration with the defaults, to be freed by ringpass_config_free; NULL if that failed.
 */
struct ringpass_config *ringpass_config_new(void);

/*
 Frees a configuration. Ports that were opened with it keep theirs.

 # Safety
 `config` came from ringpass_config_new and is not used afterwards, or is NULL.
 */
void ringpass_config_free(struct ringpass_config *config);

/*
 Sets the number of queue pairs of each port: 1 to 64. Default: 1.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_queues(struct ringpass_config *config, size_t queues);

/*
 Sets the descriptors of each Rx and Tx ring: powers of two from 64 to 4096. Default: 512.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_rings(struct ringpass_config *config, size_t rx, size_t tx);

/*
 Sets the largest payload of a frame in bytes: 68 to 9710. Default: 1500. Above 2030, a frame may lie in several buffers
 (total in struct ringpass_packet).

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_mtu(struct ringpass_config *config, size_t mtu);

/*
 Sets whether ports receive frames for any MAC address. Default: true.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_promiscuous(struct ringpass_config *config, bool on);

/*
 Sets whether a TAP or packet socket whose interface was deleted waits for one of the same name. Default: false, it is gone.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_rejoin(struct ringpass_config *config, bool on);

/*
 Sets whether ringpass_wait only polls and never sleeps. Default: false.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_poll(struct ringpass_config *config, bool on);

/*
 Sets the latency that a loop of ringpass_wait may add so that packets collect while it sleeps, in microseconds; none below 30. Default: 50.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_latency_budget(struct ringpass_config *config, uint32_t microseconds);

/*
 Sets the pages under packets and rings, RINGPASS_PAGES_…; any other number is RINGPASS_PAGES_ANY.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it.
 */
void ringpass_config_set_pages(struct ringpass_config *config, uint32_t pages);

/*
 Allows taking a card away from the kernel even if its interface is in use. `card` is its PCI address. May be called for
 several cards.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it. `card` is a string.
 */
void ringpass_config_take_over(struct ringpass_config *config, const char *card);

/*
 Sets the function that receives notices; NULL, the default, for none. It is called with `user` while ports are opened and,
 from any thread and possibly several at once, until they are closed. It must return, and not call this library.

 # Safety
 `config` came from ringpass_config_new, and no other thread uses it. `notice` may be called with `user` as described.
 */
void ringpass_config_set_notice(struct ringpass_config *config, ringpass_notice notice, void *user);

/*
 Returns the largest length that the frame can have from its present start, or a negative code.

 # Safety
 `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
 */
int ringpass_capacity(struct ringpass_packet *packet);

/*
 Extends the frame by `bytes` at its front, whose contents are to be written by the program, and changes `data`. Fails with
 RINGPASS_INVALID if there is too little room; received frames have 128 bytes.

 # Safety
 `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
 */
int ringpass_prepend(struct ringpass_packet *packet, size_t bytes);

/*
 Cuts `bytes` off the front of the frame, and changes `data`. Fails with RINGPASS_INVALID if `length` is smaller.

 # Safety
 `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
 */
int ringpass_trim_front(struct ringpass_packet *packet, size_t bytes);

/*
 Copies up to `length` bytes of the frame to `to`, from the byte at `offset` on, across all of its buffers. Returns the number
 of bytes, fewer if the frame ends before, or a negative code. A peer that shares the frame cannot change the copy.

 # Safety
 `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it. `length` bytes
 can be written at `to`, which is not in the packet.
 */
int ringpass_copy(struct ringpass_packet *packet, size_t offset, void *to, size_t length);

/*
 Frees packets, and sets their handles to zeros. Places whose handle is zero already are passed over.

 # Safety
 `packets` points to `count` packets of this library (or zeros) that no other thread uses; or `count` is 0.
 */
void ringpass_free(struct ringpass_packet *packets, size_t count);

/*
 Opens ports at `count` addresses, such as "0000:01:00.0", "tap:a" or "model:null", and sets `*ports`. `config` may be NULL, for
 the defaults. Ports are numbered from 0 in the order of their addresses. On failure nothing stays open, and `*ports` is NULL.

 # Safety
 `addresses` points to `count` strings. `config` is NULL or came from ringpass_config_new. A pointer can be written to `ports`.
 */
int ringpass_open(const char *const *addresses, size_t count, const struct ringpass_config *config, struct ringpass_ports **ports);

/*
 Returns the number of ports, or a negative code.

 # Safety
 `ports` came from ringpass_open and was not closed.
 */
int ringpass_port_count(const struct ringpass_ports *ports);

/*
 Returns the address of a port; NULL if there is no such port. It is valid until ringpass_close.

 # Safety
 `ports` came from ringpass_open and was not closed.
 */
const char *ringpass_port_name(const struct ringpass_ports *ports, size_t port);

/*
 Sets `*queue` to a queue pair of a port, both numbered from 0. The same numbers give the same queue each time. A model or card
 begins to work when the first of its queues is asked for. The queue is valid until ringpass_close.

 # Safety
 `ports` came from ringpass_open and was not closed. A pointer can be written to `queue`.
 */
int ringpass_port_queue(const struct ringpass_ports *ports, size_t port, size_t index, struct ringpass_queue **queue);

/*
 Copies the MAC address of a port to `mac`; zeros where it has none.

 # Safety
 `ports` came from ringpass_open and was not closed. 6 bytes can be written at `mac`.
 */
int ringpass_port_mac(const struct ringpass_ports *ports, size_t port, uint8_t *mac);

/*
 Sets `*link` to the present state of a port's link.

 # Safety
 `ports` came from ringpass_open and was not closed. `*link` can be written.
 */
int ringpass_port_link(const struct ringpass_ports *ports, size_t port, struct ringpass_link *link);

/*
 Sets `*stats` to the counters of a port.

 # Safety
 `ports` came from ringpass_open and was not closed. `*stats` can be written.
 */
int ringpass_port_stats(const struct ringpass_ports *ports, size_t port, struct ringpass_stats *stats);

/*
 Sets `*stats` to the counters of a queue pair of a port, both numbered from 0. RINGPASS_FAILED if the port does not count by
 queue. Frames that were lost before a queue was chosen for them are only in the counters of the port.

 # Safety
 `ports` came from ringpass_open and was not closed. `*stats` can be written.
 */
int ringpass_queue_stats(const struct ringpass_ports *ports, size_t port, size_t index, struct ringpass_stats *stats);

/*
 Creates a cable between two threads of the program: what is sent at one end is received at the other, without a copy, with room for
 at least `slots` packets (1 to 65536) in each direction. A full cable takes no more. Sets `ends[0]` and `ends[1]`, which are used as
 the queues of ports are, and are valid until ringpass_close.

 # Safety
 `ports` came from ringpass_open and was not closed. Two pointers can be written to `ends`.
 */
int ringpass_cable(const struct ringpass_ports *ports, size_t slots, struct ringpass_queue **ends);

/*
 Sets whether a port receives frames for any MAC address, or only those for its own, broadcast and multicast.

 # Safety
 `ports` came from ringpass_open and was not closed.
 */
int ringpass_port_set_promiscuous(const struct ringpass_ports *ports, size_t port, bool on);

/*
 Checks that all ports still work; to be called a few times a second. Returns 0 if they do, 1 if one has delivered all of its input
 (the end of a capture file), and RINGPASS_GONE if the device, interface or peer behind one has disappeared.

 # Safety
 `ports` came from ringpass_open and was not closed.
 */
int ringpass_check(const struct ringpass_ports *ports);

/*
 Closes the queues of all ports, and completes the capture files that they write. Afterwards the counters are final, and there
 are no queues. Fails if something could not be written.

 # Safety
 `ports` came from ringpass_open and was not closed. None of its queues is used any more, by any thread.
 */
int ringpass_finish(const struct ringpass_ports *ports);

/*
 Closes ports: does what ringpass_finish does unless that was called, and stops their devices. Returns the number of buffers that
 have not come back, which is 0 if the program has freed its packets, or a negative code if something could not be
 written; the ports are closed then, too. Packets that the program still holds may be freed later, but not used otherwise.

 # Safety
 `ports` came from ringpass_open, or is NULL. Neither it nor a queue of it is used any more, by any thread.
 */
int ringpass_close(struct ringpass_ports *ports);

/*
 Receives up to `count` packets (of which at most 256 come at a time) without waiting. Returns their number, 0 if there are none,
 or a negative code. The packets belong to the program then.

 # Safety
 `queue` is of ports that are open, and no other thread uses it. `count` packets can be written at `packets`; those that are
 there already are overwritten, not freed.
 */
int ringpass_receive(struct ringpass_queue *queue, struct ringpass_packet *packets, size_t count);

/*
 Sends packets from the front of the array without waiting. Returns the number of those that were taken, whose handles are zeros
 now; the others still belong to the program, which may try again or free them. Frames that the port can never send, such as
 those longer than its MTU allows, are taken and counted in `tx_drops`. A wrong `length` or an empty handle ends the call; if
 it is the first of the array, the result is RINGPASS_INVALID.

 # Safety
 `queue` is of ports that are open, and no other thread uses it. There are `count` packets at `packets`, of the same ports,
 that were neither sent nor freed, or whose handles are zeros.
 */
int ringpass_send(struct ringpass_queue *queue, struct ringpass_packet *packets, size_t count);

/*
 Takes up to `count` empty packets from the pool, for frames to be written and sent on any port of the same ringpass_open. Returns
 their number, fewer if the pool runs dry, or a negative code. `length` is 0 at first.

 # Safety
 `queue` is of ports that are open, and no other thread uses it. `count` packets can be written at `packets`.
 */
int ringpass_alloc(struct ringpass_queue *queue, struct ringpass_packet *packets, size_t count);

/*
 Ends a round of a loop that polls `count` queues. `moved` is how many packets the round has received. If there were some, this
 returns at once. Otherwise it spins for a while, in several calls, and then sleeps until one of the queues may have packets,
 for at most `limit_us` microseconds, and at most 0.1 s. Returns 0, or a negative code. The time spent polling adapts to the traffic, and
 where packets come in a steady stream it sleeps for the latency budget (ringpass_config_set_latency_budget) so that some collect;
 with ringpass_config_set_poll this never sleeps. A signal ends a sleep.

 The loop calls this after each round, with the same queues in the same order.

 # Safety
 `queues` points to `count` different queues of ports that are open, which no other thread uses.
 */
int ringpass_wait(struct ringpass_queue *const *queues, size_t count, size_t moved, uint32_t limit_us);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGPASS_H */
