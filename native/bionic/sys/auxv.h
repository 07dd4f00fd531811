#pragma once

#define AT_HWCAP 16

unsigned long getauxval(unsigned long type);
