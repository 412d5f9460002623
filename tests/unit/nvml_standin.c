/* Stands in for libnvidia-ml.so.1 where there is no GPU: the NVML calls that recursant/worker/nvml.py makes, over
 * figures that a test sets. Layouts as in NVIDIA's public nvml.h. */
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10
#define UNINITIALIZED 1
#define GPU_IS_LOST 15

#define MOST 8
#define XID 8ULL

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;

typedef struct {
    char uuid[96];
    char pci[32];
    unsigned long long total_bytes;
    unsigned int temperature, memory_use, clock_mhz, bus_bits;
    unsigned long long ecc;
    int supports; /* bit 0: temperature, 1: utilisation, 2: ECC, 3: events, 4: bandwidth */
    int lost;
    int registered;
} gpu_t;

typedef struct {
    gpu_t *device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} event_t;

static gpu_t gpus[MOST];
static gpu_t mig; /* the only part of a device: of the first */
static unsigned int count;
static int initialised, init_result, sets;
static event_t pending[16];
static int pending_count;

/* --- for the test --- */

void standin_reset(void) {
    memset(gpus, 0, sizeof gpus);
    count = 0;
    init_result = 0;
    pending_count = 0;
    strcpy(mig.uuid, "MIG-11111111-2222-3333-4444-555555555555");
    mig.total_bytes = 20ULL << 30;
}

void standin_add(const char *uuid, const char *pci, unsigned long long total, unsigned int temperature,
                 unsigned int memory_use, unsigned int clock_mhz, unsigned int bus_bits, unsigned long long ecc,
                 int supports) {
    gpu_t *gpu = &gpus[count++];
    strcpy(gpu->uuid, uuid);
    strcpy(gpu->pci, pci);
    gpu->total_bytes = total;
    gpu->temperature = temperature;
    gpu->memory_use = memory_use;
    gpu->clock_mhz = clock_mhz;
    gpu->bus_bits = bus_bits;
    gpu->ecc = ecc;
    gpu->supports = supports;
}

void standin_set_ecc(unsigned int index, unsigned long long ecc) { gpus[index].ecc = ecc; }
void standin_set_temperature(unsigned int index, unsigned int value) { gpus[index].temperature = value; }
void standin_lose(unsigned int index) { gpus[index].lost = 1; }
void standin_fail_init(int result) { init_result = result; }
int standin_initialised(void) { return initialised; }
int standin_event_sets(void) { return sets; }

/* The driver tells of an event, if somebody listens to that device. */
int standin_event(unsigned int index, unsigned long long type, unsigned long long data) {
    if (!gpus[index].registered) return 0;
    event_t event = {&gpus[index], type, data, 0xffffffff, 0xffffffff};
    pending[pending_count++] = event;
    return 1;
}

/* --- NVML --- */

const char *nvmlErrorString(int result) { return result == GPU_IS_LOST ? "GPU is lost" : "stand-in error"; }

int nvmlInitWithFlags(unsigned int flags) {
    if (flags || init_result) return flags ? INVALID_ARGUMENT : init_result;
    initialised++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *found) {
    if (!initialised) return UNINITIALIZED;
    *found = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu_t **gpu) {
    if (index >= count) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) {
    if (strcmp(uuid, mig.uuid)) return NOT_FOUND;
    *gpu = &mig;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu_t *part, gpu_t **gpu) {
    if (part != &mig) return INVALID_ARGUMENT;
    *gpu = &gpus[0];
    return SUCCESS;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned int length) {
    strncpy(uuid, gpu->uuid, length);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->busId, gpu->pci);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory) {
    if (gpu->lost) return GPU_IS_LOST;
    memory->total = gpu->total_bytes;
    memory->used = gpu->total_bytes / 10 * 9;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(gpu_t *gpu, int sensor, unsigned int *temperature) {
    if (gpu->lost) return GPU_IS_LOST;
    if (sensor != 0 || gpu == &mig || !(gpu->supports & 1)) return NOT_SUPPORTED;
    *temperature = gpu->temperature;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilization_t *use) {
    if (gpu->lost) return GPU_IS_LOST;
    if (gpu == &mig || !(gpu->supports & 2)) return NOT_SUPPORTED;
    use->gpu = 100;
    use->memory = gpu->memory_use;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(gpu_t *gpu, int type, unsigned int *mhz) {
    if (gpu->lost) return GPU_IS_LOST;
    if (type != 2 || !(gpu->supports & 16)) return NOT_SUPPORTED;
    *mhz = gpu->clock_mhz;
    return SUCCESS;
}

int nvmlDeviceGetMemoryBusWidth(gpu_t *gpu, unsigned int *bits) {
    if (!(gpu->supports & 16)) return NOT_SUPPORTED;
    *bits = gpu->bus_bits;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, int type, int counter, unsigned long long *errors) {
    /* 1: uncorrected, 0: since the driver was loaded. */
    if (type != 1 || counter != 0 || !(gpu->supports & 4)) return NOT_SUPPORTED;
    *errors = gpu->ecc;
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    *set = pending;
    sets++;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    if (set != (void *)pending) return INVALID_ARGUMENT;
    sets--;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(gpu_t *gpu, unsigned long long *types) {
    *types = gpu->supports & 8 ? XID | 2 : 0;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, void *set) {
    if (set != (void *)pending || types != XID) return INVALID_ARGUMENT;
    gpu->registered = 1;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned int milliseconds) {
    for (unsigned int waited = 0;; waited += 5) {
        if (set != (void *)pending) return INVALID_ARGUMENT;
        if (pending_count) {
            *event = pending[--pending_count];
            return SUCCESS;
        }
        if (waited >= milliseconds) return TIMEOUT;
        usleep(5000);
    }
}
