// The only part that talks to the CUDA driver, opened with dlopen at first use.
#pragma once

#include "plan.h"

namespace flashtri {

// Facts of device `index`, asked once. Throws std::runtime_error where there is no driver or no such device.
const Device& device_facts(int index);

// Launches everything in the plan, in order, on `stream` (a CUstream) of device `index`. Loads each kernel once a
// device, safe under threads and inside a stream capture. Throws std::logic_error for a kernel parameter that is not
// set.
void launch(const Plan& plan, int index, void* stream);

// Number of CUDA devices; 0 where there is no driver.
int device_count();

}  // namespace flashtri
