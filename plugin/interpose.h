/* Internal to the preloaded side: shared by interpose.c, vkhooks.c, loader.c. */
#ifndef VKCOMM_INTERPOSE_H
#define VKCOMM_INTERPOSE_H

#include "host_api.h"

#ifndef VKCOMM_VERSION
#define VKCOMM_VERSION "0.1.0"
#endif

/* The real function called name, as the module that holds return_address would
 * have found it without us; NULL if there is none. Fast after the first call
 * from the same place. */
void *vkcomm_real(const char *name, void *return_address);

/* Address of a symbol in the module that holds address, and not in one of its
 * dependencies; NULL if that module does not define it. */
void *vkcomm_own_symbol(void *address, const char *name);

/* Address of name in the library that defines the real
 * ggml_backend_reg_get_proc_address. */
void *vkcomm_host_symbol(const char *name);

/* True when the interposed calls must do nothing but pass on: switched off,
 * forked without exec. */
bool vkcomm_inert(void);

/* The trio's entry point called name, NULL if it is none of them or if the Go
 * object cannot be used in this process (said once). */
void *vkcomm_trio(const char *name);

void vkcomm_log_line(int level, const char *line);
void vkcomm_logf(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* vkhooks.c: our wrapper of the Vulkan command called name, given its real
 * address, or the real address itself where nothing is wrapped. */
PFN_vkVoidFunction vkcomm_wrap_instance_proc(VkInstance instance, const char *name, PFN_vkVoidFunction real,
                                             PFN_vkGetInstanceProcAddr real_gipa);
PFN_vkVoidFunction vkcomm_wrap_device_proc(const char *name, PFN_vkVoidFunction real);

#endif
