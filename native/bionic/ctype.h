#pragma once

int isdigit(int character);
int isxdigit(int character);
int isspace(int character);
int isalpha(int character);
int isalnum(int character);
int isprint(int character);
int tolower(int character);
int toupper(int character);
