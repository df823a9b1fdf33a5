/* SPDX-License-Identifier: MIT */
/* Register command words: target in bits 63:48, value in 47:16, register in 15:0.
 *
 * uint64_t words, uint16_t targets, uint32_t values, uint16_t registers, at any alignment: they may
 * stand anywhere in a mapped file.
 */
#ifndef NPUKIT_REGCMD_H
#define NPUKIT_REGCMD_H

#include <stddef.h>

void npukit_encode_regcmds(void *words, const void *target, const void *value, const void *reg,
                           size_t count);
void npukit_decode_regcmds(void *target, void *value, void *reg, const void *words, size_t count);

#endif
