/* What the kernel knows of this process. */
#ifndef HARNESS_FOOTPRINT_H
#define HARNESS_FOOTPRINT_H

struct footprint {
    long fds;
    long threads;
    long rss_kib;
};

struct footprint footprint_now(void);

/* The same once threads that were told to end are no longer listed, or after 2 s. */
struct footprint footprint_settled(const struct footprint * before);

#endif
