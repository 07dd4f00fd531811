#pragma once

int* __errno(void);
#define errno (*__errno())

#define ENOENT 2
#define EINTR 4
#define EIO 5
#define EAGAIN 11
#define EWOULDBLOCK EAGAIN
#define ENOMEM 12
#define EACCES 13
#define EBUSY 16
#define EEXIST 17
#define ENOTDIR 20
#define EISDIR 21
#define EINVAL 22
#define EFBIG 27
#define ENOSPC 28
#define EROFS 30
#define ERANGE 34
#define ENAMETOOLONG 36
#define ENOTEMPTY 39
#define EBADMSG 74
#define EOVERFLOW 75
#define ECONNABORTED 103
