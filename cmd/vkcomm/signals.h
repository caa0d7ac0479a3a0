/* Signals that were ignored when the program started are to be so in the one
 * that takes its place. */
#ifndef VKCOMM_SIGNALS_H
#define VKCOMM_SIGNALS_H

void vkcomm_restore_ignored(void);

#endif
