/*
 * Watches a communicator while reductions are in flight. With native ordering a
 * queue that waits for a peer learns neither that the peer's device is lost nor
 * that it has come to a stop, and the host waits for that queue's fence without
 * a limit. A thread looks at all timelines once a second: a lost device is fatal,
 * one line says that nothing gets on, and what is merely slow goes on.
 *
 * Once everything submitted is done the thread sleeps until the next submission.
 */
#ifndef VKCOMM_WATCH_H
#define VKCOMM_WATCH_H

struct vkcomm_executor;
struct vkcomm_watch;

/* NULL: no memory or thread. */
struct vkcomm_watch *vkcomm_watch_start(struct vkcomm_executor *executor);

/* Something was submitted, as the executor's base values say by now. */
void vkcomm_watch_expect(struct vkcomm_watch *watch);

/* Ends the thread. */
void vkcomm_watch_stop(struct vkcomm_watch *watch);

#endif
