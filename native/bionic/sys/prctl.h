#pragma once

#define PR_SET_PDEATHSIG 1

int prctl(int option, ...);
