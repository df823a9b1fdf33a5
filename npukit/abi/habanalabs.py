# SPDX-License-Identifier: MIT
"""include/uapi/drm/habanalabs_accel.h: Intel Gaudi (Habana Labs), Goya before it.

What goes in and what comes back share one union: make a new one for each call. A pointer that
stands in a union with something else, and means one or the other by a flag, is not declared as a
pointer; ``chunks_restore`` and ``chunks_execute`` are, as their counts are 0 where the flag says
otherwise.

Before Linux 6.3 the driver was none of drivers/accel, and its header another.
"""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64

from npukit.ioctl import IOWR, Ioctl, Pointer, Struct, Union

from .drm import DRM_COMMAND_BASE, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

GOYA_KMD_SRAM_RESERVED_SIZE_FROM_START = 0x8000
GAUDI_DRIVER_SRAM_RESERVED_SIZE_FROM_START = 0x80
GAUDI_FIRST_AVAILABLE_W_S_SYNC_OBJECT = 144
GAUDI_FIRST_AVAILABLE_W_S_MONITOR = 72
TS_MAX_ELEMENTS_NUM = 1 << 20

# enum goya_queue_id
GOYA_QUEUE_ID_DMA_0 = 0
GOYA_QUEUE_ID_DMA_1 = 1
GOYA_QUEUE_ID_DMA_2 = 2
GOYA_QUEUE_ID_DMA_3 = 3
GOYA_QUEUE_ID_DMA_4 = 4
GOYA_QUEUE_ID_CPU_PQ = 5
GOYA_QUEUE_ID_MME = 6
GOYA_QUEUE_ID_TPC0 = 7
GOYA_QUEUE_ID_TPC1 = 8
GOYA_QUEUE_ID_TPC2 = 9
GOYA_QUEUE_ID_TPC3 = 10
GOYA_QUEUE_ID_TPC4 = 11
GOYA_QUEUE_ID_TPC5 = 12
GOYA_QUEUE_ID_TPC6 = 13
GOYA_QUEUE_ID_TPC7 = 14
GOYA_QUEUE_ID_SIZE = 15

# enum gaudi_queue_id: 0 to 7 external, 8 the CPU, the rest internal
GAUDI_QUEUE_ID_DMA_0_0 = 0
GAUDI_QUEUE_ID_DMA_0_1 = 1
GAUDI_QUEUE_ID_DMA_0_2 = 2
GAUDI_QUEUE_ID_DMA_0_3 = 3
GAUDI_QUEUE_ID_DMA_1_0 = 4
GAUDI_QUEUE_ID_DMA_1_1 = 5
GAUDI_QUEUE_ID_DMA_1_2 = 6
GAUDI_QUEUE_ID_DMA_1_3 = 7
GAUDI_QUEUE_ID_CPU_PQ = 8
GAUDI_QUEUE_ID_DMA_2_0 = 9
GAUDI_QUEUE_ID_DMA_2_1 = 10
GAUDI_QUEUE_ID_DMA_2_2 = 11
GAUDI_QUEUE_ID_DMA_2_3 = 12
GAUDI_QUEUE_ID_DMA_3_0 = 13
GAUDI_QUEUE_ID_DMA_3_1 = 14
GAUDI_QUEUE_ID_DMA_3_2 = 15
GAUDI_QUEUE_ID_DMA_3_3 = 16
GAUDI_QUEUE_ID_DMA_4_0 = 17
GAUDI_QUEUE_ID_DMA_4_1 = 18
GAUDI_QUEUE_ID_DMA_4_2 = 19
GAUDI_QUEUE_ID_DMA_4_3 = 20
GAUDI_QUEUE_ID_DMA_5_0 = 21
GAUDI_QUEUE_ID_DMA_5_1 = 22
GAUDI_QUEUE_ID_DMA_5_2 = 23
GAUDI_QUEUE_ID_DMA_5_3 = 24
GAUDI_QUEUE_ID_DMA_6_0 = 25
GAUDI_QUEUE_ID_DMA_6_1 = 26
GAUDI_QUEUE_ID_DMA_6_2 = 27
GAUDI_QUEUE_ID_DMA_6_3 = 28
GAUDI_QUEUE_ID_DMA_7_0 = 29
GAUDI_QUEUE_ID_DMA_7_1 = 30
GAUDI_QUEUE_ID_DMA_7_2 = 31
GAUDI_QUEUE_ID_DMA_7_3 = 32
GAUDI_QUEUE_ID_MME_0_0 = 33
GAUDI_QUEUE_ID_MME_0_1 = 34
GAUDI_QUEUE_ID_MME_0_2 = 35
GAUDI_QUEUE_ID_MME_0_3 = 36
GAUDI_QUEUE_ID_MME_1_0 = 37
GAUDI_QUEUE_ID_MME_1_1 = 38
GAUDI_QUEUE_ID_MME_1_2 = 39
GAUDI_QUEUE_ID_MME_1_3 = 40
GAUDI_QUEUE_ID_TPC_0_0 = 41
GAUDI_QUEUE_ID_TPC_0_1 = 42
GAUDI_QUEUE_ID_TPC_0_2 = 43
GAUDI_QUEUE_ID_TPC_0_3 = 44
GAUDI_QUEUE_ID_TPC_1_0 = 45
GAUDI_QUEUE_ID_TPC_1_1 = 46
GAUDI_QUEUE_ID_TPC_1_2 = 47
GAUDI_QUEUE_ID_TPC_1_3 = 48
GAUDI_QUEUE_ID_TPC_2_0 = 49
GAUDI_QUEUE_ID_TPC_2_1 = 50
GAUDI_QUEUE_ID_TPC_2_2 = 51
GAUDI_QUEUE_ID_TPC_2_3 = 52
GAUDI_QUEUE_ID_TPC_3_0 = 53
GAUDI_QUEUE_ID_TPC_3_1 = 54
GAUDI_QUEUE_ID_TPC_3_2 = 55
GAUDI_QUEUE_ID_TPC_3_3 = 56
GAUDI_QUEUE_ID_TPC_4_0 = 57
GAUDI_QUEUE_ID_TPC_4_1 = 58
GAUDI_QUEUE_ID_TPC_4_2 = 59
GAUDI_QUEUE_ID_TPC_4_3 = 60
GAUDI_QUEUE_ID_TPC_5_0 = 61
GAUDI_QUEUE_ID_TPC_5_1 = 62
GAUDI_QUEUE_ID_TPC_5_2 = 63
GAUDI_QUEUE_ID_TPC_5_3 = 64
GAUDI_QUEUE_ID_TPC_6_0 = 65
GAUDI_QUEUE_ID_TPC_6_1 = 66
GAUDI_QUEUE_ID_TPC_6_2 = 67
GAUDI_QUEUE_ID_TPC_6_3 = 68
GAUDI_QUEUE_ID_TPC_7_0 = 69
GAUDI_QUEUE_ID_TPC_7_1 = 70
GAUDI_QUEUE_ID_TPC_7_2 = 71
GAUDI_QUEUE_ID_TPC_7_3 = 72
GAUDI_QUEUE_ID_NIC_0_0 = 73
GAUDI_QUEUE_ID_NIC_0_1 = 74
GAUDI_QUEUE_ID_NIC_0_2 = 75
GAUDI_QUEUE_ID_NIC_0_3 = 76
GAUDI_QUEUE_ID_NIC_1_0 = 77
GAUDI_QUEUE_ID_NIC_1_1 = 78
GAUDI_QUEUE_ID_NIC_1_2 = 79
GAUDI_QUEUE_ID_NIC_1_3 = 80
GAUDI_QUEUE_ID_NIC_2_0 = 81
GAUDI_QUEUE_ID_NIC_2_1 = 82
GAUDI_QUEUE_ID_NIC_2_2 = 83
GAUDI_QUEUE_ID_NIC_2_3 = 84
GAUDI_QUEUE_ID_NIC_3_0 = 85
GAUDI_QUEUE_ID_NIC_3_1 = 86
GAUDI_QUEUE_ID_NIC_3_2 = 87
GAUDI_QUEUE_ID_NIC_3_3 = 88
GAUDI_QUEUE_ID_NIC_4_0 = 89
GAUDI_QUEUE_ID_NIC_4_1 = 90
GAUDI_QUEUE_ID_NIC_4_2 = 91
GAUDI_QUEUE_ID_NIC_4_3 = 92
GAUDI_QUEUE_ID_NIC_5_0 = 93
GAUDI_QUEUE_ID_NIC_5_1 = 94
GAUDI_QUEUE_ID_NIC_5_2 = 95
GAUDI_QUEUE_ID_NIC_5_3 = 96
GAUDI_QUEUE_ID_NIC_6_0 = 97
GAUDI_QUEUE_ID_NIC_6_1 = 98
GAUDI_QUEUE_ID_NIC_6_2 = 99
GAUDI_QUEUE_ID_NIC_6_3 = 100
GAUDI_QUEUE_ID_NIC_7_0 = 101
GAUDI_QUEUE_ID_NIC_7_1 = 102
GAUDI_QUEUE_ID_NIC_7_2 = 103
GAUDI_QUEUE_ID_NIC_7_3 = 104
GAUDI_QUEUE_ID_NIC_8_0 = 105
GAUDI_QUEUE_ID_NIC_8_1 = 106
GAUDI_QUEUE_ID_NIC_8_2 = 107
GAUDI_QUEUE_ID_NIC_8_3 = 108
GAUDI_QUEUE_ID_NIC_9_0 = 109
GAUDI_QUEUE_ID_NIC_9_1 = 110
GAUDI_QUEUE_ID_NIC_9_2 = 111
GAUDI_QUEUE_ID_NIC_9_3 = 112
GAUDI_QUEUE_ID_SIZE = 113

# enum gaudi2_queue_id
GAUDI2_QUEUE_ID_PDMA_0_0 = 0
GAUDI2_QUEUE_ID_PDMA_0_1 = 1
GAUDI2_QUEUE_ID_PDMA_0_2 = 2
GAUDI2_QUEUE_ID_PDMA_0_3 = 3
GAUDI2_QUEUE_ID_PDMA_1_0 = 4
GAUDI2_QUEUE_ID_PDMA_1_1 = 5
GAUDI2_QUEUE_ID_PDMA_1_2 = 6
GAUDI2_QUEUE_ID_PDMA_1_3 = 7
GAUDI2_QUEUE_ID_DCORE0_EDMA_0_0 = 8
GAUDI2_QUEUE_ID_DCORE0_EDMA_0_1 = 9
GAUDI2_QUEUE_ID_DCORE0_EDMA_0_2 = 10
GAUDI2_QUEUE_ID_DCORE0_EDMA_0_3 = 11
GAUDI2_QUEUE_ID_DCORE0_EDMA_1_0 = 12
GAUDI2_QUEUE_ID_DCORE0_EDMA_1_1 = 13
GAUDI2_QUEUE_ID_DCORE0_EDMA_1_2 = 14
GAUDI2_QUEUE_ID_DCORE0_EDMA_1_3 = 15
GAUDI2_QUEUE_ID_DCORE0_MME_0_0 = 16
GAUDI2_QUEUE_ID_DCORE0_MME_0_1 = 17
GAUDI2_QUEUE_ID_DCORE0_MME_0_2 = 18
GAUDI2_QUEUE_ID_DCORE0_MME_0_3 = 19
GAUDI2_QUEUE_ID_DCORE0_TPC_0_0 = 20
GAUDI2_QUEUE_ID_DCORE0_TPC_0_1 = 21
GAUDI2_QUEUE_ID_DCORE0_TPC_0_2 = 22
GAUDI2_QUEUE_ID_DCORE0_TPC_0_3 = 23
GAUDI2_QUEUE_ID_DCORE0_TPC_1_0 = 24
GAUDI2_QUEUE_ID_DCORE0_TPC_1_1 = 25
GAUDI2_QUEUE_ID_DCORE0_TPC_1_2 = 26
GAUDI2_QUEUE_ID_DCORE0_TPC_1_3 = 27
GAUDI2_QUEUE_ID_DCORE0_TPC_2_0 = 28
GAUDI2_QUEUE_ID_DCORE0_TPC_2_1 = 29
GAUDI2_QUEUE_ID_DCORE0_TPC_2_2 = 30
GAUDI2_QUEUE_ID_DCORE0_TPC_2_3 = 31
GAUDI2_QUEUE_ID_DCORE0_TPC_3_0 = 32
GAUDI2_QUEUE_ID_DCORE0_TPC_3_1 = 33
GAUDI2_QUEUE_ID_DCORE0_TPC_3_2 = 34
GAUDI2_QUEUE_ID_DCORE0_TPC_3_3 = 35
GAUDI2_QUEUE_ID_DCORE0_TPC_4_0 = 36
GAUDI2_QUEUE_ID_DCORE0_TPC_4_1 = 37
GAUDI2_QUEUE_ID_DCORE0_TPC_4_2 = 38
GAUDI2_QUEUE_ID_DCORE0_TPC_4_3 = 39
GAUDI2_QUEUE_ID_DCORE0_TPC_5_0 = 40
GAUDI2_QUEUE_ID_DCORE0_TPC_5_1 = 41
GAUDI2_QUEUE_ID_DCORE0_TPC_5_2 = 42
GAUDI2_QUEUE_ID_DCORE0_TPC_5_3 = 43
GAUDI2_QUEUE_ID_DCORE0_TPC_6_0 = 44
GAUDI2_QUEUE_ID_DCORE0_TPC_6_1 = 45
GAUDI2_QUEUE_ID_DCORE0_TPC_6_2 = 46
GAUDI2_QUEUE_ID_DCORE0_TPC_6_3 = 47
GAUDI2_QUEUE_ID_DCORE1_EDMA_0_0 = 48
GAUDI2_QUEUE_ID_DCORE1_EDMA_0_1 = 49
GAUDI2_QUEUE_ID_DCORE1_EDMA_0_2 = 50
GAUDI2_QUEUE_ID_DCORE1_EDMA_0_3 = 51
GAUDI2_QUEUE_ID_DCORE1_EDMA_1_0 = 52
GAUDI2_QUEUE_ID_DCORE1_EDMA_1_1 = 53
GAUDI2_QUEUE_ID_DCORE1_EDMA_1_2 = 54
GAUDI2_QUEUE_ID_DCORE1_EDMA_1_3 = 55
GAUDI2_QUEUE_ID_DCORE1_MME_0_0 = 56
GAUDI2_QUEUE_ID_DCORE1_MME_0_1 = 57
GAUDI2_QUEUE_ID_DCORE1_MME_0_2 = 58
GAUDI2_QUEUE_ID_DCORE1_MME_0_3 = 59
GAUDI2_QUEUE_ID_DCORE1_TPC_0_0 = 60
GAUDI2_QUEUE_ID_DCORE1_TPC_0_1 = 61
GAUDI2_QUEUE_ID_DCORE1_TPC_0_2 = 62
GAUDI2_QUEUE_ID_DCORE1_TPC_0_3 = 63
GAUDI2_QUEUE_ID_DCORE1_TPC_1_0 = 64
GAUDI2_QUEUE_ID_DCORE1_TPC_1_1 = 65
GAUDI2_QUEUE_ID_DCORE1_TPC_1_2 = 66
GAUDI2_QUEUE_ID_DCORE1_TPC_1_3 = 67
GAUDI2_QUEUE_ID_DCORE1_TPC_2_0 = 68
GAUDI2_QUEUE_ID_DCORE1_TPC_2_1 = 69
GAUDI2_QUEUE_ID_DCORE1_TPC_2_2 = 70
GAUDI2_QUEUE_ID_DCORE1_TPC_2_3 = 71
GAUDI2_QUEUE_ID_DCORE1_TPC_3_0 = 72
GAUDI2_QUEUE_ID_DCORE1_TPC_3_1 = 73
GAUDI2_QUEUE_ID_DCORE1_TPC_3_2 = 74
GAUDI2_QUEUE_ID_DCORE1_TPC_3_3 = 75
GAUDI2_QUEUE_ID_DCORE1_TPC_4_0 = 76
GAUDI2_QUEUE_ID_DCORE1_TPC_4_1 = 77
GAUDI2_QUEUE_ID_DCORE1_TPC_4_2 = 78
GAUDI2_QUEUE_ID_DCORE1_TPC_4_3 = 79
GAUDI2_QUEUE_ID_DCORE1_TPC_5_0 = 80
GAUDI2_QUEUE_ID_DCORE1_TPC_5_1 = 81
GAUDI2_QUEUE_ID_DCORE1_TPC_5_2 = 82
GAUDI2_QUEUE_ID_DCORE1_TPC_5_3 = 83
GAUDI2_QUEUE_ID_DCORE2_EDMA_0_0 = 84
GAUDI2_QUEUE_ID_DCORE2_EDMA_0_1 = 85
GAUDI2_QUEUE_ID_DCORE2_EDMA_0_2 = 86
GAUDI2_QUEUE_ID_DCORE2_EDMA_0_3 = 87
GAUDI2_QUEUE_ID_DCORE2_EDMA_1_0 = 88
GAUDI2_QUEUE_ID_DCORE2_EDMA_1_1 = 89
GAUDI2_QUEUE_ID_DCORE2_EDMA_1_2 = 90
GAUDI2_QUEUE_ID_DCORE2_EDMA_1_3 = 91
GAUDI2_QUEUE_ID_DCORE2_MME_0_0 = 92
GAUDI2_QUEUE_ID_DCORE2_MME_0_1 = 93
GAUDI2_QUEUE_ID_DCORE2_MME_0_2 = 94
GAUDI2_QUEUE_ID_DCORE2_MME_0_3 = 95
GAUDI2_QUEUE_ID_DCORE2_TPC_0_0 = 96
GAUDI2_QUEUE_ID_DCORE2_TPC_0_1 = 97
GAUDI2_QUEUE_ID_DCORE2_TPC_0_2 = 98
GAUDI2_QUEUE_ID_DCORE2_TPC_0_3 = 99
GAUDI2_QUEUE_ID_DCORE2_TPC_1_0 = 100
GAUDI2_QUEUE_ID_DCORE2_TPC_1_1 = 101
GAUDI2_QUEUE_ID_DCORE2_TPC_1_2 = 102
GAUDI2_QUEUE_ID_DCORE2_TPC_1_3 = 103
GAUDI2_QUEUE_ID_DCORE2_TPC_2_0 = 104
GAUDI2_QUEUE_ID_DCORE2_TPC_2_1 = 105
GAUDI2_QUEUE_ID_DCORE2_TPC_2_2 = 106
GAUDI2_QUEUE_ID_DCORE2_TPC_2_3 = 107
GAUDI2_QUEUE_ID_DCORE2_TPC_3_0 = 108
GAUDI2_QUEUE_ID_DCORE2_TPC_3_1 = 109
GAUDI2_QUEUE_ID_DCORE2_TPC_3_2 = 110
GAUDI2_QUEUE_ID_DCORE2_TPC_3_3 = 111
GAUDI2_QUEUE_ID_DCORE2_TPC_4_0 = 112
GAUDI2_QUEUE_ID_DCORE2_TPC_4_1 = 113
GAUDI2_QUEUE_ID_DCORE2_TPC_4_2 = 114
GAUDI2_QUEUE_ID_DCORE2_TPC_4_3 = 115
GAUDI2_QUEUE_ID_DCORE2_TPC_5_0 = 116
GAUDI2_QUEUE_ID_DCORE2_TPC_5_1 = 117
GAUDI2_QUEUE_ID_DCORE2_TPC_5_2 = 118
GAUDI2_QUEUE_ID_DCORE2_TPC_5_3 = 119
GAUDI2_QUEUE_ID_DCORE3_EDMA_0_0 = 120
GAUDI2_QUEUE_ID_DCORE3_EDMA_0_1 = 121
GAUDI2_QUEUE_ID_DCORE3_EDMA_0_2 = 122
GAUDI2_QUEUE_ID_DCORE3_EDMA_0_3 = 123
GAUDI2_QUEUE_ID_DCORE3_EDMA_1_0 = 124
GAUDI2_QUEUE_ID_DCORE3_EDMA_1_1 = 125
GAUDI2_QUEUE_ID_DCORE3_EDMA_1_2 = 126
GAUDI2_QUEUE_ID_DCORE3_EDMA_1_3 = 127
GAUDI2_QUEUE_ID_DCORE3_MME_0_0 = 128
GAUDI2_QUEUE_ID_DCORE3_MME_0_1 = 129
GAUDI2_QUEUE_ID_DCORE3_MME_0_2 = 130
GAUDI2_QUEUE_ID_DCORE3_MME_0_3 = 131
GAUDI2_QUEUE_ID_DCORE3_TPC_0_0 = 132
GAUDI2_QUEUE_ID_DCORE3_TPC_0_1 = 133
GAUDI2_QUEUE_ID_DCORE3_TPC_0_2 = 134
GAUDI2_QUEUE_ID_DCORE3_TPC_0_3 = 135
GAUDI2_QUEUE_ID_DCORE3_TPC_1_0 = 136
GAUDI2_QUEUE_ID_DCORE3_TPC_1_1 = 137
GAUDI2_QUEUE_ID_DCORE3_TPC_1_2 = 138
GAUDI2_QUEUE_ID_DCORE3_TPC_1_3 = 139
GAUDI2_QUEUE_ID_DCORE3_TPC_2_0 = 140
GAUDI2_QUEUE_ID_DCORE3_TPC_2_1 = 141
GAUDI2_QUEUE_ID_DCORE3_TPC_2_2 = 142
GAUDI2_QUEUE_ID_DCORE3_TPC_2_3 = 143
GAUDI2_QUEUE_ID_DCORE3_TPC_3_0 = 144
GAUDI2_QUEUE_ID_DCORE3_TPC_3_1 = 145
GAUDI2_QUEUE_ID_DCORE3_TPC_3_2 = 146
GAUDI2_QUEUE_ID_DCORE3_TPC_3_3 = 147
GAUDI2_QUEUE_ID_DCORE3_TPC_4_0 = 148
GAUDI2_QUEUE_ID_DCORE3_TPC_4_1 = 149
GAUDI2_QUEUE_ID_DCORE3_TPC_4_2 = 150
GAUDI2_QUEUE_ID_DCORE3_TPC_4_3 = 151
GAUDI2_QUEUE_ID_DCORE3_TPC_5_0 = 152
GAUDI2_QUEUE_ID_DCORE3_TPC_5_1 = 153
GAUDI2_QUEUE_ID_DCORE3_TPC_5_2 = 154
GAUDI2_QUEUE_ID_DCORE3_TPC_5_3 = 155
GAUDI2_QUEUE_ID_NIC_0_0 = 156
GAUDI2_QUEUE_ID_NIC_0_1 = 157
GAUDI2_QUEUE_ID_NIC_0_2 = 158
GAUDI2_QUEUE_ID_NIC_0_3 = 159
GAUDI2_QUEUE_ID_NIC_1_0 = 160
GAUDI2_QUEUE_ID_NIC_1_1 = 161
GAUDI2_QUEUE_ID_NIC_1_2 = 162
GAUDI2_QUEUE_ID_NIC_1_3 = 163
GAUDI2_QUEUE_ID_NIC_2_0 = 164
GAUDI2_QUEUE_ID_NIC_2_1 = 165
GAUDI2_QUEUE_ID_NIC_2_2 = 166
GAUDI2_QUEUE_ID_NIC_2_3 = 167
GAUDI2_QUEUE_ID_NIC_3_0 = 168
GAUDI2_QUEUE_ID_NIC_3_1 = 169
GAUDI2_QUEUE_ID_NIC_3_2 = 170
GAUDI2_QUEUE_ID_NIC_3_3 = 171
GAUDI2_QUEUE_ID_NIC_4_0 = 172
GAUDI2_QUEUE_ID_NIC_4_1 = 173
GAUDI2_QUEUE_ID_NIC_4_2 = 174
GAUDI2_QUEUE_ID_NIC_4_3 = 175
GAUDI2_QUEUE_ID_NIC_5_0 = 176
GAUDI2_QUEUE_ID_NIC_5_1 = 177
GAUDI2_QUEUE_ID_NIC_5_2 = 178
GAUDI2_QUEUE_ID_NIC_5_3 = 179
GAUDI2_QUEUE_ID_NIC_6_0 = 180
GAUDI2_QUEUE_ID_NIC_6_1 = 181
GAUDI2_QUEUE_ID_NIC_6_2 = 182
GAUDI2_QUEUE_ID_NIC_6_3 = 183
GAUDI2_QUEUE_ID_NIC_7_0 = 184
GAUDI2_QUEUE_ID_NIC_7_1 = 185
GAUDI2_QUEUE_ID_NIC_7_2 = 186
GAUDI2_QUEUE_ID_NIC_7_3 = 187
GAUDI2_QUEUE_ID_NIC_8_0 = 188
GAUDI2_QUEUE_ID_NIC_8_1 = 189
GAUDI2_QUEUE_ID_NIC_8_2 = 190
GAUDI2_QUEUE_ID_NIC_8_3 = 191
GAUDI2_QUEUE_ID_NIC_9_0 = 192
GAUDI2_QUEUE_ID_NIC_9_1 = 193
GAUDI2_QUEUE_ID_NIC_9_2 = 194
GAUDI2_QUEUE_ID_NIC_9_3 = 195
GAUDI2_QUEUE_ID_NIC_10_0 = 196
GAUDI2_QUEUE_ID_NIC_10_1 = 197
GAUDI2_QUEUE_ID_NIC_10_2 = 198
GAUDI2_QUEUE_ID_NIC_10_3 = 199
GAUDI2_QUEUE_ID_NIC_11_0 = 200
GAUDI2_QUEUE_ID_NIC_11_1 = 201
GAUDI2_QUEUE_ID_NIC_11_2 = 202
GAUDI2_QUEUE_ID_NIC_11_3 = 203
GAUDI2_QUEUE_ID_NIC_12_0 = 204
GAUDI2_QUEUE_ID_NIC_12_1 = 205
GAUDI2_QUEUE_ID_NIC_12_2 = 206
GAUDI2_QUEUE_ID_NIC_12_3 = 207
GAUDI2_QUEUE_ID_NIC_13_0 = 208
GAUDI2_QUEUE_ID_NIC_13_1 = 209
GAUDI2_QUEUE_ID_NIC_13_2 = 210
GAUDI2_QUEUE_ID_NIC_13_3 = 211
GAUDI2_QUEUE_ID_NIC_14_0 = 212
GAUDI2_QUEUE_ID_NIC_14_1 = 213
GAUDI2_QUEUE_ID_NIC_14_2 = 214
GAUDI2_QUEUE_ID_NIC_14_3 = 215
GAUDI2_QUEUE_ID_NIC_15_0 = 216
GAUDI2_QUEUE_ID_NIC_15_1 = 217
GAUDI2_QUEUE_ID_NIC_15_2 = 218
GAUDI2_QUEUE_ID_NIC_15_3 = 219
GAUDI2_QUEUE_ID_NIC_16_0 = 220
GAUDI2_QUEUE_ID_NIC_16_1 = 221
GAUDI2_QUEUE_ID_NIC_16_2 = 222
GAUDI2_QUEUE_ID_NIC_16_3 = 223
GAUDI2_QUEUE_ID_NIC_17_0 = 224
GAUDI2_QUEUE_ID_NIC_17_1 = 225
GAUDI2_QUEUE_ID_NIC_17_2 = 226
GAUDI2_QUEUE_ID_NIC_17_3 = 227
GAUDI2_QUEUE_ID_NIC_18_0 = 228
GAUDI2_QUEUE_ID_NIC_18_1 = 229
GAUDI2_QUEUE_ID_NIC_18_2 = 230
GAUDI2_QUEUE_ID_NIC_18_3 = 231
GAUDI2_QUEUE_ID_NIC_19_0 = 232
GAUDI2_QUEUE_ID_NIC_19_1 = 233
GAUDI2_QUEUE_ID_NIC_19_2 = 234
GAUDI2_QUEUE_ID_NIC_19_3 = 235
GAUDI2_QUEUE_ID_NIC_20_0 = 236
GAUDI2_QUEUE_ID_NIC_20_1 = 237
GAUDI2_QUEUE_ID_NIC_20_2 = 238
GAUDI2_QUEUE_ID_NIC_20_3 = 239
GAUDI2_QUEUE_ID_NIC_21_0 = 240
GAUDI2_QUEUE_ID_NIC_21_1 = 241
GAUDI2_QUEUE_ID_NIC_21_2 = 242
GAUDI2_QUEUE_ID_NIC_21_3 = 243
GAUDI2_QUEUE_ID_NIC_22_0 = 244
GAUDI2_QUEUE_ID_NIC_22_1 = 245
GAUDI2_QUEUE_ID_NIC_22_2 = 246
GAUDI2_QUEUE_ID_NIC_22_3 = 247
GAUDI2_QUEUE_ID_NIC_23_0 = 248
GAUDI2_QUEUE_ID_NIC_23_1 = 249
GAUDI2_QUEUE_ID_NIC_23_2 = 250
GAUDI2_QUEUE_ID_NIC_23_3 = 251
GAUDI2_QUEUE_ID_ROT_0_0 = 252
GAUDI2_QUEUE_ID_ROT_0_1 = 253
GAUDI2_QUEUE_ID_ROT_0_2 = 254
GAUDI2_QUEUE_ID_ROT_0_3 = 255
GAUDI2_QUEUE_ID_ROT_1_0 = 256
GAUDI2_QUEUE_ID_ROT_1_1 = 257
GAUDI2_QUEUE_ID_ROT_1_2 = 258
GAUDI2_QUEUE_ID_ROT_1_3 = 259
GAUDI2_QUEUE_ID_CPU_PQ = 260
GAUDI2_QUEUE_ID_SIZE = 261

# enum goya_engine_id
GOYA_ENGINE_ID_DMA_0 = 0
GOYA_ENGINE_ID_DMA_1 = 1
GOYA_ENGINE_ID_DMA_2 = 2
GOYA_ENGINE_ID_DMA_3 = 3
GOYA_ENGINE_ID_DMA_4 = 4
GOYA_ENGINE_ID_MME_0 = 5
GOYA_ENGINE_ID_TPC_0 = 6
GOYA_ENGINE_ID_TPC_1 = 7
GOYA_ENGINE_ID_TPC_2 = 8
GOYA_ENGINE_ID_TPC_3 = 9
GOYA_ENGINE_ID_TPC_4 = 10
GOYA_ENGINE_ID_TPC_5 = 11
GOYA_ENGINE_ID_TPC_6 = 12
GOYA_ENGINE_ID_TPC_7 = 13
GOYA_ENGINE_ID_SIZE = 14

# enum gaudi_engine_id
GAUDI_ENGINE_ID_DMA_0 = 0
GAUDI_ENGINE_ID_DMA_1 = 1
GAUDI_ENGINE_ID_DMA_2 = 2
GAUDI_ENGINE_ID_DMA_3 = 3
GAUDI_ENGINE_ID_DMA_4 = 4
GAUDI_ENGINE_ID_DMA_5 = 5
GAUDI_ENGINE_ID_DMA_6 = 6
GAUDI_ENGINE_ID_DMA_7 = 7
GAUDI_ENGINE_ID_MME_0 = 8
GAUDI_ENGINE_ID_MME_1 = 9
GAUDI_ENGINE_ID_MME_2 = 10
GAUDI_ENGINE_ID_MME_3 = 11
GAUDI_ENGINE_ID_TPC_0 = 12
GAUDI_ENGINE_ID_TPC_1 = 13
GAUDI_ENGINE_ID_TPC_2 = 14
GAUDI_ENGINE_ID_TPC_3 = 15
GAUDI_ENGINE_ID_TPC_4 = 16
GAUDI_ENGINE_ID_TPC_5 = 17
GAUDI_ENGINE_ID_TPC_6 = 18
GAUDI_ENGINE_ID_TPC_7 = 19
GAUDI_ENGINE_ID_NIC_0 = 20
GAUDI_ENGINE_ID_NIC_1 = 21
GAUDI_ENGINE_ID_NIC_2 = 22
GAUDI_ENGINE_ID_NIC_3 = 23
GAUDI_ENGINE_ID_NIC_4 = 24
GAUDI_ENGINE_ID_NIC_5 = 25
GAUDI_ENGINE_ID_NIC_6 = 26
GAUDI_ENGINE_ID_NIC_7 = 27
GAUDI_ENGINE_ID_NIC_8 = 28
GAUDI_ENGINE_ID_NIC_9 = 29
GAUDI_ENGINE_ID_SIZE = 30

# enum gaudi2_engine_id
GAUDI2_DCORE0_ENGINE_ID_EDMA_0 = 0
GAUDI2_DCORE0_ENGINE_ID_EDMA_1 = 1
GAUDI2_DCORE0_ENGINE_ID_MME = 2
GAUDI2_DCORE0_ENGINE_ID_TPC_0 = 3
GAUDI2_DCORE0_ENGINE_ID_TPC_1 = 4
GAUDI2_DCORE0_ENGINE_ID_TPC_2 = 5
GAUDI2_DCORE0_ENGINE_ID_TPC_3 = 6
GAUDI2_DCORE0_ENGINE_ID_TPC_4 = 7
GAUDI2_DCORE0_ENGINE_ID_TPC_5 = 8
GAUDI2_DCORE0_ENGINE_ID_DEC_0 = 9
GAUDI2_DCORE0_ENGINE_ID_DEC_1 = 10
GAUDI2_DCORE1_ENGINE_ID_EDMA_0 = 11
GAUDI2_DCORE1_ENGINE_ID_EDMA_1 = 12
GAUDI2_DCORE1_ENGINE_ID_MME = 13
GAUDI2_DCORE1_ENGINE_ID_TPC_0 = 14
GAUDI2_DCORE1_ENGINE_ID_TPC_1 = 15
GAUDI2_DCORE1_ENGINE_ID_TPC_2 = 16
GAUDI2_DCORE1_ENGINE_ID_TPC_3 = 17
GAUDI2_DCORE1_ENGINE_ID_TPC_4 = 18
GAUDI2_DCORE1_ENGINE_ID_TPC_5 = 19
GAUDI2_DCORE1_ENGINE_ID_DEC_0 = 20
GAUDI2_DCORE1_ENGINE_ID_DEC_1 = 21
GAUDI2_DCORE2_ENGINE_ID_EDMA_0 = 22
GAUDI2_DCORE2_ENGINE_ID_EDMA_1 = 23
GAUDI2_DCORE2_ENGINE_ID_MME = 24
GAUDI2_DCORE2_ENGINE_ID_TPC_0 = 25
GAUDI2_DCORE2_ENGINE_ID_TPC_1 = 26
GAUDI2_DCORE2_ENGINE_ID_TPC_2 = 27
GAUDI2_DCORE2_ENGINE_ID_TPC_3 = 28
GAUDI2_DCORE2_ENGINE_ID_TPC_4 = 29
GAUDI2_DCORE2_ENGINE_ID_TPC_5 = 30
GAUDI2_DCORE2_ENGINE_ID_DEC_0 = 31
GAUDI2_DCORE2_ENGINE_ID_DEC_1 = 32
GAUDI2_DCORE3_ENGINE_ID_EDMA_0 = 33
GAUDI2_DCORE3_ENGINE_ID_EDMA_1 = 34
GAUDI2_DCORE3_ENGINE_ID_MME = 35
GAUDI2_DCORE3_ENGINE_ID_TPC_0 = 36
GAUDI2_DCORE3_ENGINE_ID_TPC_1 = 37
GAUDI2_DCORE3_ENGINE_ID_TPC_2 = 38
GAUDI2_DCORE3_ENGINE_ID_TPC_3 = 39
GAUDI2_DCORE3_ENGINE_ID_TPC_4 = 40
GAUDI2_DCORE3_ENGINE_ID_TPC_5 = 41
GAUDI2_DCORE3_ENGINE_ID_DEC_0 = 42
GAUDI2_DCORE3_ENGINE_ID_DEC_1 = 43
GAUDI2_DCORE0_ENGINE_ID_TPC_6 = 44
GAUDI2_ENGINE_ID_PDMA_0 = 45
GAUDI2_ENGINE_ID_PDMA_1 = 46
GAUDI2_ENGINE_ID_ROT_0 = 47
GAUDI2_ENGINE_ID_ROT_1 = 48
GAUDI2_PCIE_ENGINE_ID_DEC_0 = 49
GAUDI2_PCIE_ENGINE_ID_DEC_1 = 50
GAUDI2_ENGINE_ID_NIC0_0 = 51
GAUDI2_ENGINE_ID_NIC0_1 = 52
GAUDI2_ENGINE_ID_NIC1_0 = 53
GAUDI2_ENGINE_ID_NIC1_1 = 54
GAUDI2_ENGINE_ID_NIC2_0 = 55
GAUDI2_ENGINE_ID_NIC2_1 = 56
GAUDI2_ENGINE_ID_NIC3_0 = 57
GAUDI2_ENGINE_ID_NIC3_1 = 58
GAUDI2_ENGINE_ID_NIC4_0 = 59
GAUDI2_ENGINE_ID_NIC4_1 = 60
GAUDI2_ENGINE_ID_NIC5_0 = 61
GAUDI2_ENGINE_ID_NIC5_1 = 62
GAUDI2_ENGINE_ID_NIC6_0 = 63
GAUDI2_ENGINE_ID_NIC6_1 = 64
GAUDI2_ENGINE_ID_NIC7_0 = 65
GAUDI2_ENGINE_ID_NIC7_1 = 66
GAUDI2_ENGINE_ID_NIC8_0 = 67
GAUDI2_ENGINE_ID_NIC8_1 = 68
GAUDI2_ENGINE_ID_NIC9_0 = 69
GAUDI2_ENGINE_ID_NIC9_1 = 70
GAUDI2_ENGINE_ID_NIC10_0 = 71
GAUDI2_ENGINE_ID_NIC10_1 = 72
GAUDI2_ENGINE_ID_NIC11_0 = 73
GAUDI2_ENGINE_ID_NIC11_1 = 74
GAUDI2_ENGINE_ID_PCIE = 75
GAUDI2_ENGINE_ID_PSOC = 76
GAUDI2_ENGINE_ID_ARC_FARM = 77
GAUDI2_ENGINE_ID_KDMA = 78
GAUDI2_ENGINE_ID_SIZE = 79

# enum hl_goya_pll_index: pll_index of hl_info_args
HL_GOYA_CPU_PLL = 0
HL_GOYA_IC_PLL = 1
HL_GOYA_MC_PLL = 2
HL_GOYA_MME_PLL = 3
HL_GOYA_PCI_PLL = 4
HL_GOYA_EMMC_PLL = 5
HL_GOYA_TPC_PLL = 6
HL_GOYA_PLL_MAX = 7

# enum hl_gaudi_pll_index: pll_index of hl_info_args
HL_GAUDI_CPU_PLL = 0
HL_GAUDI_PCI_PLL = 1
HL_GAUDI_SRAM_PLL = 2
HL_GAUDI_HBM_PLL = 3
HL_GAUDI_NIC_PLL = 4
HL_GAUDI_DMA_PLL = 5
HL_GAUDI_MESH_PLL = 6
HL_GAUDI_MME_PLL = 7
HL_GAUDI_TPC_PLL = 8
HL_GAUDI_IF_PLL = 9
HL_GAUDI_PLL_MAX = 10

# enum hl_gaudi2_pll_index: pll_index of hl_info_args
HL_GAUDI2_CPU_PLL = 0
HL_GAUDI2_PCI_PLL = 1
HL_GAUDI2_SRAM_PLL = 2
HL_GAUDI2_HBM_PLL = 3
HL_GAUDI2_NIC_PLL = 4
HL_GAUDI2_DMA_PLL = 5
HL_GAUDI2_MESH_PLL = 6
HL_GAUDI2_MME_PLL = 7
HL_GAUDI2_TPC_PLL = 8
HL_GAUDI2_IF_PLL = 9
HL_GAUDI2_VID_PLL = 10
HL_GAUDI2_MSS_PLL = 11
HL_GAUDI2_PLL_MAX = 12

# enum hl_goya_dma_direction
HL_DMA_HOST_TO_DRAM = 0
HL_DMA_HOST_TO_SRAM = 1
HL_DMA_DRAM_TO_SRAM = 2
HL_DMA_SRAM_TO_DRAM = 3
HL_DMA_SRAM_TO_HOST = 4
HL_DMA_DRAM_TO_HOST = 5
HL_DMA_DRAM_TO_DRAM = 6
HL_DMA_SRAM_TO_SRAM = 7
HL_DMA_ENUM_MAX = 8

# enum hl_device_status
HL_DEVICE_STATUS_OPERATIONAL = 0
HL_DEVICE_STATUS_IN_RESET = 1
HL_DEVICE_STATUS_MALFUNCTION = 2
HL_DEVICE_STATUS_NEEDS_RESET = 3
HL_DEVICE_STATUS_IN_DEVICE_CREATION = 4
HL_DEVICE_STATUS_IN_RESET_AFTER_DEVICE_RELEASE = 5
HL_DEVICE_STATUS_LAST = 5

# enum hl_server_type
HL_SERVER_TYPE_UNKNOWN = 0
HL_SERVER_GAUDI_HLS1 = 1
HL_SERVER_GAUDI_HLS1H = 2
HL_SERVER_GAUDI_TYPE1 = 3
HL_SERVER_GAUDI_TYPE2 = 4
HL_SERVER_GAUDI2_HLS2 = 5
HL_SERVER_GAUDI2_TYPE1 = 7

# bits of HL_INFO_GET_EVENTS
HL_NOTIFIER_EVENT_TPC_ASSERT = 1 << 0
HL_NOTIFIER_EVENT_UNDEFINED_OPCODE = 1 << 1
HL_NOTIFIER_EVENT_DEVICE_RESET = 1 << 2
HL_NOTIFIER_EVENT_CS_TIMEOUT = 1 << 3
HL_NOTIFIER_EVENT_DEVICE_UNAVAILABLE = 1 << 4
HL_NOTIFIER_EVENT_USER_ENGINE_ERR = 1 << 5
HL_NOTIFIER_EVENT_GENERAL_HW_ERR = 1 << 6
HL_NOTIFIER_EVENT_RAZWI = 1 << 7
HL_NOTIFIER_EVENT_PAGE_FAULT = 1 << 8
HL_NOTIFIER_EVENT_CRITICL_HW_ERR = 1 << 9
HL_NOTIFIER_EVENT_CRITICL_FW_ERR = 1 << 10

# op of hl_info_args
HL_INFO_HW_IP_INFO = 0
HL_INFO_HW_EVENTS = 1
HL_INFO_DRAM_USAGE = 2
HL_INFO_HW_IDLE = 3
HL_INFO_DEVICE_STATUS = 4
HL_INFO_DEVICE_UTILIZATION = 6
HL_INFO_HW_EVENTS_AGGREGATE = 7
HL_INFO_CLK_RATE = 8
HL_INFO_RESET_COUNT = 9
HL_INFO_TIME_SYNC = 10
HL_INFO_CS_COUNTERS = 11
HL_INFO_PCI_COUNTERS = 12
HL_INFO_CLK_THROTTLE_REASON = 13
HL_INFO_SYNC_MANAGER = 14
HL_INFO_TOTAL_ENERGY = 15
HL_INFO_PLL_FREQUENCY = 16
HL_INFO_POWER = 17
HL_INFO_OPEN_STATS = 18
HL_INFO_DRAM_REPLACED_ROWS = 21
HL_INFO_DRAM_PENDING_ROWS = 22
HL_INFO_LAST_ERR_OPEN_DEV_TIME = 23
HL_INFO_CS_TIMEOUT_EVENT = 24
HL_INFO_RAZWI_EVENT = 25
HL_INFO_DEV_MEM_ALLOC_PAGE_SIZES = 26
HL_INFO_SECURED_ATTESTATION = 27
HL_INFO_REGISTER_EVENTFD = 28
HL_INFO_UNREGISTER_EVENTFD = 29
HL_INFO_GET_EVENTS = 30
HL_INFO_UNDEFINED_OPCODE_EVENT = 31
HL_INFO_ENGINE_STATUS = 32
HL_INFO_PAGE_FAULT_EVENT = 33
HL_INFO_USER_MAPPINGS = 34
HL_INFO_FW_GENERIC_REQ = 35
HL_INFO_HW_ERR_EVENT = 36
HL_INFO_FW_ERR_EVENT = 37
HL_INFO_USER_ENGINE_ERR_EVENT = 38
HL_INFO_DEV_SIGNED = 40

HL_INFO_VERSION_MAX_LEN = 128
HL_INFO_CARD_NAME_MAX_LEN = 16
HL_ENGINES_DATA_MAX_SIZE = 0x100000
"""SZ_1M, which user space does not know, like BIT() and U16_MAX below."""


class hl_info_hw_ip_info(Struct):
    """HL_INFO_HW_IP_INFO. Sizes in bytes; ``server_type`` is an enum hl_server_type."""

    _size_ = 304
    _fields_ = [
        ("sram_base_address", c_uint64),
        ("dram_base_address", c_uint64),
        ("dram_size", c_uint64),
        ("sram_size", c_uint32),
        ("num_of_events", c_uint32),
        ("device_id", c_uint32),
        ("module_id", c_uint32),
        ("decoder_enabled_mask", c_uint32),
        ("first_available_interrupt_id", c_uint16),
        ("server_type", c_uint16),
        ("cpld_version", c_uint32),
        ("psoc_pci_pll_nr", c_uint32),
        ("psoc_pci_pll_nf", c_uint32),
        ("psoc_pci_pll_od", c_uint32),
        ("psoc_pci_pll_div_factor", c_uint32),
        ("tpc_enabled_mask", c_uint8),
        ("dram_enabled", c_uint8),
        ("security_enabled", c_uint8),
        ("mme_master_slave_mode", c_uint8),
        ("cpucp_version", c_uint8 * 128),
        ("card_name", c_uint8 * 16),
        ("tpc_enabled_mask_ext", c_uint64),
        ("dram_page_size", c_uint64),
        ("edma_enabled_mask", c_uint32),
        ("number_of_user_interrupts", c_uint16),
        ("reserved1", c_uint8),
        ("reserved2", c_uint8),
        ("reserved3", c_uint64),
        ("device_mem_alloc_default_page_size", c_uint64),
        ("reserved4", c_uint64),
        ("reserved5", c_uint64),
        ("reserved6", c_uint32),
        ("reserved7", c_uint8),
        ("revision_id", c_uint8),
        ("tpc_interrupt_id", c_uint16),
        ("rotator_enabled_mask", c_uint32),
        ("reserved9", c_uint32),
        ("engine_core_interrupt_reg_addr", c_uint64),
        ("reserved_dram_size", c_uint64),
    ]


class hl_info_dram_usage(Struct):
    """HL_INFO_DRAM_USAGE, in bytes."""

    _size_ = 16
    _fields_ = [
        ("dram_free_mem", c_uint64),
        ("ctx_dram_mem", c_uint64),
    ]


HL_BUSY_ENGINES_MASK_EXT_SIZE = 4


class hl_info_hw_idle(Struct):
    """HL_INFO_HW_IDLE. The bits are those of the chip's enum *_engine_id."""

    _size_ = 40
    _fields_ = [
        ("is_idle", c_uint32),
        ("busy_engines_mask", c_uint32),
        ("busy_engines_mask_ext", c_uint64 * 4),
    ]


class hl_info_device_status(Struct):
    """HL_INFO_DEVICE_STATUS: an enum hl_device_status."""

    _size_ = 8
    _fields_ = [
        ("status", c_uint32),
        ("pad", c_uint32),
    ]


class hl_info_device_utilization(Struct):
    """HL_INFO_DEVICE_UTILIZATION, in percent."""

    _size_ = 8
    _fields_ = [
        ("utilization", c_uint32),
        ("pad", c_uint32),
    ]


class hl_info_clk_rate(Struct):
    """HL_INFO_CLK_RATE."""

    _size_ = 8
    _fields_ = [
        ("cur_clk_rate_mhz", c_uint32),
        ("max_clk_rate_mhz", c_uint32),
    ]


class hl_info_reset_count(Struct):
    """HL_INFO_RESET_COUNT."""

    _size_ = 8
    _fields_ = [
        ("hard_reset_cnt", c_uint32),
        ("soft_reset_cnt", c_uint32),
    ]


class hl_info_time_sync(Struct):
    """HL_INFO_TIME_SYNC."""

    _size_ = 24
    _fields_ = [
        ("device_time", c_uint64),
        ("host_time", c_uint64),
        ("tsc_time", c_uint64),
    ]


class hl_info_pci_counters(Struct):
    """HL_INFO_PCI_COUNTERS; throughput in KB/s."""

    _size_ = 24
    _fields_ = [
        ("rx_throughput", c_uint64),
        ("tx_throughput", c_uint64),
        ("replay_cnt", c_uint64),
    ]


# enum hl_clk_throttling_type
HL_CLK_THROTTLE_TYPE_POWER = 0
HL_CLK_THROTTLE_TYPE_THERMAL = 1
HL_CLK_THROTTLE_TYPE_MAX = 2
HL_CLK_THROTTLE_POWER = 1 << HL_CLK_THROTTLE_TYPE_POWER
HL_CLK_THROTTLE_THERMAL = 1 << HL_CLK_THROTTLE_TYPE_THERMAL


class hl_info_clk_throttle(Struct):
    """HL_INFO_CLK_THROTTLE_REASON: a mask of HL_CLK_THROTTLE_*; one entry for each type."""

    _size_ = 40
    _fields_ = [
        ("clk_throttling_reason", c_uint32),
        ("pad", c_uint32),
        ("clk_throttling_timestamp_us", c_uint64 * 2),
        ("clk_throttling_duration_ns", c_uint64 * 2),
    ]


class hl_info_energy(Struct):
    """HL_INFO_TOTAL_ENERGY."""

    _size_ = 8
    _fields_ = [
        ("total_energy_consumption", c_uint64),
    ]


HL_PLL_NUM_OUTPUTS = 4


class hl_pll_frequency_info(Struct):
    """HL_INFO_PLL_FREQUENCY."""

    _size_ = 8
    _fields_ = [
        ("output", c_uint16 * 4),
    ]


class hl_open_stats_info(Struct):
    """HL_INFO_OPEN_STATS."""

    _size_ = 24
    _fields_ = [
        ("open_counter", c_uint64),
        ("last_open_period_ms", c_uint64),
        ("is_compute_ctx_active", c_uint8),
        ("compute_ctx_in_release", c_uint8),
        ("pad", c_uint8 * 6),
    ]


class hl_power_info(Struct):
    """HL_INFO_POWER."""

    _size_ = 8
    _fields_ = [
        ("power", c_uint64),
    ]


class hl_info_sync_manager(Struct):
    """HL_INFO_SYNC_MANAGER."""

    _size_ = 16
    _fields_ = [
        ("first_available_sync_object", c_uint32),
        ("first_available_monitor", c_uint32),
        ("first_available_cq", c_uint32),
        ("reserved", c_uint32),
    ]


class hl_info_cs_counters(Struct):
    """HL_INFO_CS_COUNTERS: submissions dropped, in all and of this context."""

    _size_ = 96
    _fields_ = [
        ("total_out_of_mem_drop_cnt", c_uint64),
        ("ctx_out_of_mem_drop_cnt", c_uint64),
        ("total_parsing_drop_cnt", c_uint64),
        ("ctx_parsing_drop_cnt", c_uint64),
        ("total_queue_full_drop_cnt", c_uint64),
        ("ctx_queue_full_drop_cnt", c_uint64),
        ("total_device_in_reset_drop_cnt", c_uint64),
        ("ctx_device_in_reset_drop_cnt", c_uint64),
        ("total_max_cs_in_flight_drop_cnt", c_uint64),
        ("ctx_max_cs_in_flight_drop_cnt", c_uint64),
        ("total_validation_drop_cnt", c_uint64),
        ("ctx_validation_drop_cnt", c_uint64),
    ]


class hl_info_last_err_open_dev_time(Struct):
    """HL_INFO_LAST_ERR_OPEN_DEV_TIME."""

    _size_ = 8
    _fields_ = [
        ("timestamp", c_int64),
    ]


class hl_info_cs_timeout_event(Struct):
    """HL_INFO_CS_TIMEOUT_EVENT."""

    _size_ = 16
    _fields_ = [
        ("timestamp", c_int64),
        ("seq", c_uint64),
    ]


HL_RAZWI_NA_ENG_ID = 0xFFFF
HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR = 128
HL_RAZWI_READ = 1 << 0
HL_RAZWI_WRITE = 1 << 1
HL_RAZWI_LBW = 1 << 2
HL_RAZWI_HBW = 1 << 3
HL_RAZWI_RR = 1 << 4
HL_RAZWI_ADDR_DEC = 1 << 5


class hl_info_razwi_event(Struct):
    """HL_INFO_RAZWI_EVENT; ``flags`` are HL_RAZWI_*, ``timestamp`` 0: none yet."""

    _size_ = 280
    _fields_ = [
        ("timestamp", c_int64),
        ("addr", c_uint64),
        ("engine_id", c_uint16 * 128),
        ("num_of_possible_engines", c_uint16),
        ("flags", c_uint8),
        ("pad", c_uint8 * 5),
    ]


MAX_QMAN_STREAMS_INFO = 4
OPCODE_INFO_MAX_ADDR_SIZE = 8


class hl_info_undefined_opcode_event(Struct):
    """HL_INFO_UNDEFINED_OPCODE_EVENT."""

    _size_ = 288
    _fields_ = [
        ("timestamp", c_int64),
        ("cb_addr_streams", (c_uint64 * 8) * 4),
        ("cq_addr", c_uint64),
        ("cq_size", c_uint32),
        ("cb_addr_streams_len", c_uint32),
        ("engine_id", c_uint32),
        ("stream_id", c_uint32),
    ]


class hl_info_hw_err_event(Struct):
    """HL_INFO_HW_ERR_EVENT."""

    _size_ = 16
    _fields_ = [
        ("timestamp", c_int64),
        ("event_id", c_uint16),
        ("pad", c_uint16 * 3),
    ]


# enum hl_info_fw_err_type
HL_INFO_FW_HEARTBEAT_ERR = 0
HL_INFO_FW_REPORTED_ERR = 1


class hl_info_fw_err_event(Struct):
    """HL_INFO_FW_ERR_EVENT; ``err_type`` is an enum hl_info_fw_err_type."""

    _size_ = 16
    _fields_ = [
        ("timestamp", c_int64),
        ("err_type", c_uint16),
        ("event_id", c_uint16),
        ("pad", c_uint32),
    ]


class hl_info_engine_err_event(Struct):
    """HL_INFO_USER_ENGINE_ERR_EVENT."""

    _size_ = 16
    _fields_ = [
        ("timestamp", c_int64),
        ("engine_id", c_uint16),
        ("error_count", c_uint16),
        ("pad", c_uint32),
    ]


class hl_info_dev_memalloc_page_sizes(Struct):
    """HL_INFO_DEV_MEM_ALLOC_PAGE_SIZES: bit n stands for pages of 2^n bytes."""

    _size_ = 8
    _fields_ = [
        ("page_order_bitmask", c_uint64),
    ]


SEC_PCR_DATA_BUF_SZ = 256
SEC_PCR_QUOTE_BUF_SZ = 510
SEC_SIGNATURE_BUF_SZ = 255
SEC_PUB_DATA_BUF_SZ = 510
SEC_CERTIFICATE_BUF_SZ = 2046
SEC_DEV_INFO_BUF_SZ = 5120


class hl_info_sec_attest(Struct):
    """HL_INFO_SECURED_ATTESTATION."""

    _size_ = 3592
    _fields_ = [
        ("nonce", c_uint32),
        ("pcr_quote_len", c_uint16),
        ("pub_data_len", c_uint16),
        ("certificate_len", c_uint16),
        ("pcr_num_reg", c_uint8),
        ("pcr_reg_len", c_uint8),
        ("quote_sig_len", c_uint8),
        ("pcr_data", c_uint8 * 256),
        ("pcr_quote", c_uint8 * 510),
        ("quote_sig", c_uint8 * 255),
        ("public_data", c_uint8 * 510),
        ("certificate", c_uint8 * 2046),
        ("pad0", c_uint8 * 2),
    ]


class hl_info_signed(Struct):
    """HL_INFO_DEV_SIGNED."""

    _size_ = 7944
    _fields_ = [
        ("nonce", c_uint32),
        ("pub_data_len", c_uint16),
        ("certificate_len", c_uint16),
        ("info_sig_len", c_uint8),
        ("public_data", c_uint8 * 510),
        ("certificate", c_uint8 * 2046),
        ("info_sig", c_uint8 * 255),
        ("dev_info_len", c_uint16),
        ("dev_info", c_uint8 * 5120),
        ("pad", c_uint8 * 2),
    ]


class hl_page_fault_info(Struct):
    """HL_INFO_PAGE_FAULT_EVENT."""

    _size_ = 24
    _fields_ = [
        ("timestamp", c_int64),
        ("addr", c_uint64),
        ("engine_id", c_uint16),
        ("pad", c_uint8 * 6),
    ]


class hl_user_mapping(Struct):
    """HL_INFO_USER_MAPPINGS, an array of these."""

    _size_ = 16
    _fields_ = [
        ("dev_va", c_uint64),
        ("size", c_uint64),
    ]


# enum gaudi_dcores: dcore_id of hl_info_args
HL_GAUDI_WS_DCORE = 0
HL_GAUDI_WN_DCORE = 1
HL_GAUDI_EN_DCORE = 2
HL_GAUDI_ES_DCORE = 3


class _hl_info_parameter(Union):
    _size_ = 4
    _fields_ = [
        ("dcore_id", c_uint32),
        ("ctx_id", c_uint32),
        ("period_ms", c_uint32),
        ("pll_index", c_uint32),
        ("eventfd", c_uint32),
        ("user_buffer_actual_size", c_uint32),
        ("sec_attest_nonce", c_uint32),
        ("array_size", c_uint32),
        ("fw_sub_opcode", c_uint32),
    ]


class hl_info_args(Struct):
    """``op`` is an HL_INFO_*; the union's member belongs to it."""

    _size_ = 24
    _anonymous_ = ("_parameter",)
    _fields_ = [
        ("return_pointer", c_uint64),
        ("return_size", c_uint32),
        ("op", c_uint32),
        ("_parameter", _hl_info_parameter),
        ("pad", c_uint32),
    ]
    _pointers_ = {"return_pointer": Pointer(c_uint8, count="return_size", direction="inout")}


# op and flags of hl_cb_in
HL_CB_OP_CREATE = 0
HL_CB_OP_DESTROY = 1
HL_CB_OP_INFO = 2

HL_MAX_CB_SIZE = 0x200000 - 32

HL_CB_FLAGS_MAP = 0x1
HL_CB_FLAGS_GET_DEVICE_VA = 0x2


class hl_cb_in(Struct):
    """``op`` is an HL_CB_OP_*; ``cb_size`` in bytes."""

    _size_ = 24
    _fields_ = [
        ("cb_handle", c_uint64),
        ("op", c_uint32),
        ("cb_size", c_uint32),
        ("ctx_id", c_uint32),
        ("flags", c_uint32),
    ]


class _hl_cb_usage(Struct):
    _size_ = 8
    _fields_ = [
        ("usage_cnt", c_uint32),
        ("pad", c_uint32),
    ]


class _hl_cb_info(Union):
    _size_ = 8
    _anonymous_ = ("_usage",)
    _fields_ = [
        ("_usage", _hl_cb_usage),
        ("device_va", c_uint64),
    ]


class _hl_cb_answer(Union):
    _size_ = 8
    _anonymous_ = ("_info",)
    _fields_ = [
        ("cb_handle", c_uint64),
        ("_info", _hl_cb_info),
    ]


class hl_cb_out(Struct):
    """A handle, or what HL_CB_OP_INFO asked for."""

    _size_ = 8
    _anonymous_ = ("_answer",)
    _fields_ = [
        ("_answer", _hl_cb_answer),
    ]


class hl_cb_args(Union):
    _size_ = 24
    _fields_ = [
        ("in", hl_cb_in),
        ("out", hl_cb_out),
    ]


HL_CS_CHUNK_FLAGS_USER_ALLOC_CB = 0x1


class _hl_cs_chunk_source(Union):
    _size_ = 8
    _fields_ = [
        ("cb_handle", c_uint64),
        ("signal_seq_arr", c_uint64),
        ("encaps_signal_seq", c_uint64),
    ]


class _hl_cs_chunk_extent(Union):
    _size_ = 4
    _fields_ = [
        ("cb_size", c_uint32),
        ("num_signal_seq_arr", c_uint32),
        ("encaps_signal_offset", c_uint32),
    ]


class hl_cs_chunk(Struct):
    """One job: a command buffer for a queue."""

    _size_ = 64
    _anonymous_ = (
        "_source",
        "_extent",
    )
    _fields_ = [
        ("_source", _hl_cs_chunk_source),
        ("queue_index", c_uint32),
        ("_extent", _hl_cs_chunk_extent),
        ("cs_chunk_flags", c_uint32),
        ("collective_engine_id", c_uint32),
        ("pad", c_uint32 * 10),
    ]


# cs_flags of hl_cs_in
HL_CS_FLAGS_FORCE_RESTORE = 0x1
HL_CS_FLAGS_SIGNAL = 0x2
HL_CS_FLAGS_WAIT = 0x4
HL_CS_FLAGS_COLLECTIVE_WAIT = 0x8
HL_CS_FLAGS_TIMESTAMP = 0x20
HL_CS_FLAGS_STAGED_SUBMISSION = 0x40
HL_CS_FLAGS_STAGED_SUBMISSION_FIRST = 0x80
HL_CS_FLAGS_STAGED_SUBMISSION_LAST = 0x100
HL_CS_FLAGS_CUSTOM_TIMEOUT = 0x200
HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT = 0x400
HL_CS_FLAGS_ENCAP_SIGNALS = 0x800
HL_CS_FLAGS_RESERVE_SIGNALS_ONLY = 0x1000
HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY = 0x2000
HL_CS_FLAGS_ENGINE_CORE_COMMAND = 0x4000
HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES = 0x8000
HL_CS_FLAGS_ENGINES_COMMAND = 0x10000

HL_CS_STATUS_SUCCESS = 0
HL_MAX_JOBS_PER_CS = 512

# enum hl_engine_command: core_command and engine_command of hl_cs_in
HL_ENGINE_CORE_HALT = 1
HL_ENGINE_CORE_RUN = 2
HL_ENGINE_STALL = 3
HL_ENGINE_RESUME = 4
HL_ENGINE_COMMAND_MAX = 5


class _hl_cs_chunks(Struct):
    _size_ = 16
    _fields_ = [
        ("chunks_restore", c_uint64),
        ("chunks_execute", c_uint64),
    ]


class _hl_cs_cores(Struct):
    _size_ = 16
    _fields_ = [
        ("engine_cores", c_uint64),
        ("num_engine_cores", c_uint32),
        ("core_command", c_uint32),
    ]


class _hl_cs_engines(Struct):
    _size_ = 16
    _fields_ = [
        ("engines", c_uint64),
        ("num_engines", c_uint32),
        ("engine_command", c_uint32),
    ]


class _hl_cs_work(Union):
    _size_ = 16
    _anonymous_ = (
        "_chunks",
        "_cores",
        "_engines",
    )
    _fields_ = [
        ("_chunks", _hl_cs_chunks),
        ("_cores", _hl_cs_cores),
        ("_engines", _hl_cs_engines),
    ]


class _hl_cs_reservation(Struct):
    _size_ = 8
    _fields_ = [
        ("encaps_signals_count", c_uint32),
        ("encaps_signals_q_idx", c_uint32),
    ]


class _hl_cs_signals(Union):
    _size_ = 8
    _anonymous_ = ("_reservation",)
    _fields_ = [
        ("seq", c_uint64),
        ("encaps_sig_handle_id", c_uint32),
        ("_reservation", _hl_cs_reservation),
    ]


class hl_cs_in(Struct):
    """``cs_flags`` are HL_CS_FLAGS_*; ``timeout`` in seconds, with HL_CS_FLAGS_CUSTOM_TIMEOUT."""

    _size_ = 48
    _anonymous_ = (
        "_work",
        "_signals",
    )
    _fields_ = [
        ("_work", _hl_cs_work),
        ("_signals", _hl_cs_signals),
        ("num_chunks_restore", c_uint32),
        ("num_chunks_execute", c_uint32),
        ("timeout", c_uint32),
        ("cs_flags", c_uint32),
        ("ctx_id", c_uint32),
        ("pad", c_uint8 * 4),
    ]
    _pointers_ = {
        "chunks_restore": Pointer(hl_cs_chunk, count="num_chunks_restore"),
        "chunks_execute": Pointer(hl_cs_chunk, count="num_chunks_execute"),
    }


class _hl_cs_reserved_signals(Struct):
    _size_ = 8
    _fields_ = [
        ("handle_id", c_uint32),
        ("count", c_uint32),
    ]


class _hl_cs_answer(Union):
    _size_ = 8
    _anonymous_ = ("_reservation",)
    _fields_ = [
        ("seq", c_uint64),
        ("_reservation", _hl_cs_reserved_signals),
    ]


class hl_cs_out(Struct):
    """``seq`` is what WAIT_CS waits for."""

    _size_ = 24
    _anonymous_ = ("_answer",)
    _fields_ = [
        ("_answer", _hl_cs_answer),
        ("status", c_uint32),
        ("sob_base_addr_offset", c_uint32),
        ("sob_count_before_submission", c_uint16),
        ("pad", c_uint16 * 3),
    ]


class hl_cs_args(Union):
    _size_ = 48
    _fields_ = [
        ("in", hl_cs_in),
        ("out", hl_cs_out),
    ]


# flags of hl_wait_cs_in; an interrupt's number stands in those of the mask
HL_WAIT_CS_FLAGS_INTERRUPT = 0x2
HL_WAIT_CS_FLAGS_INTERRUPT_MASK = 0xFFF00000
HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT = 0xFFF00000
HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT = 0xFFE00000
HL_WAIT_CS_FLAGS_MULTI_CS = 0x4
HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ = 0x10
HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT = 0x20

HL_WAIT_MULTI_CS_LIST_MAX_LEN = 32


class _hl_wait_cs_sequence(Struct):
    _size_ = 16
    _fields_ = [
        ("seq", c_uint64),
        ("timeout_us", c_uint64),
    ]


class _hl_wait_cs_address(Union):
    _size_ = 8
    _fields_ = [
        ("addr", c_uint64),
        ("cq_counters_handle", c_uint64),
    ]


class _hl_wait_cs_interrupt(Struct):
    _size_ = 16
    _anonymous_ = ("_address",)
    _fields_ = [
        ("_address", _hl_wait_cs_address),
        ("target", c_uint64),
    ]


class _hl_wait_cs_event(Union):
    _size_ = 16
    _anonymous_ = (
        "_sequence",
        "_interrupt",
    )
    _fields_ = [
        ("_sequence", _hl_wait_cs_sequence),
        ("_interrupt", _hl_wait_cs_interrupt),
    ]


class _hl_wait_cs_multi(Struct):
    _size_ = 8
    _fields_ = [
        ("seq_arr_len", c_uint8),
        ("pad", c_uint8 * 7),
    ]


class _hl_wait_cs_extra(Union):
    _size_ = 8
    _anonymous_ = ("_multi",)
    _fields_ = [
        ("_multi", _hl_wait_cs_multi),
        ("interrupt_timeout_us", c_uint64),
    ]


class hl_wait_cs_in(Struct):
    """Timeouts in microseconds from now on; 0 polls."""

    _size_ = 56
    _anonymous_ = (
        "_event",
        "_extra",
    )
    _fields_ = [
        ("_event", _hl_wait_cs_event),
        ("ctx_id", c_uint32),
        ("flags", c_uint32),
        ("_extra", _hl_wait_cs_extra),
        ("cq_counters_offset", c_uint64),
        ("timestamp_handle", c_uint64),
        ("timestamp_offset", c_uint64),
    ]


# status of hl_wait_cs_out, then its flags
HL_WAIT_CS_STATUS_COMPLETED = 0
HL_WAIT_CS_STATUS_BUSY = 1
HL_WAIT_CS_STATUS_TIMEDOUT = 2
HL_WAIT_CS_STATUS_ABORTED = 3
HL_WAIT_CS_STATUS_FLAG_GONE = 0x1
HL_WAIT_CS_STATUS_FLAG_TIMESTAMP_VLD = 0x2


class hl_wait_cs_out(Struct):
    """``status`` is an HL_WAIT_CS_STATUS_*."""

    _size_ = 24
    _fields_ = [
        ("status", c_uint32),
        ("flags", c_uint32),
        ("timestamp_nsec", c_int64),
        ("cs_completion_map", c_uint32),
        ("pad", c_uint32),
    ]


class hl_wait_cs_args(Union):
    _size_ = 56
    _fields_ = [
        ("in", hl_wait_cs_in),
        ("out", hl_wait_cs_out),
    ]


# op, then flags, of hl_mem_in
HL_MEM_OP_ALLOC = 0
HL_MEM_OP_FREE = 1
HL_MEM_OP_MAP = 2
HL_MEM_OP_UNMAP = 3
HL_MEM_OP_MAP_BLOCK = 4
HL_MEM_OP_EXPORT_DMABUF_FD = 5
HL_MEM_OP_TS_ALLOC = 6
HL_MEM_CONTIGUOUS = 0x1
HL_MEM_SHARED = 0x2
HL_MEM_USERPTR = 0x4
HL_MEM_FORCE_HINT = 0x8
HL_MEM_PREFETCH = 0x40


class _hl_mem_alloc(Struct):
    _size_ = 16
    _fields_ = [("mem_size", c_uint64), ("page_size", c_uint64)]


class _hl_mem_free(Struct):
    _size_ = 8
    _fields_ = [("handle", c_uint64)]


class _hl_mem_map_device(Struct):
    _size_ = 16
    _fields_ = [("hint_addr", c_uint64), ("handle", c_uint64)]


class _hl_mem_map_host(Struct):
    _size_ = 24
    _fields_ = [("host_virt_addr", c_uint64), ("hint_addr", c_uint64), ("mem_size", c_uint64)]


class _hl_mem_map_block(Struct):
    _size_ = 8
    _fields_ = [("block_addr", c_uint64)]


class _hl_mem_unmap(Struct):
    _size_ = 8
    _fields_ = [("device_virt_addr", c_uint64)]


class _hl_mem_export_dmabuf_fd(Struct):
    _size_ = 24
    _fields_ = [("addr", c_uint64), ("mem_size", c_uint64), ("offset", c_uint64)]


class _hl_mem_arg(Union):
    _size_ = 24
    _fields_ = [
        ("alloc", _hl_mem_alloc),
        ("free", _hl_mem_free),
        ("map_device", _hl_mem_map_device),
        ("map_host", _hl_mem_map_host),
        ("map_block", _hl_mem_map_block),
        ("unmap", _hl_mem_unmap),
        ("export_dmabuf_fd", _hl_mem_export_dmabuf_fd),
    ]


class hl_mem_in(Struct):
    """``op`` is an HL_MEM_OP_*, ``flags`` are HL_MEM_*; each operation has its member."""

    _size_ = 40
    _anonymous_ = ("_arg",)
    _fields_ = [
        ("_arg", _hl_mem_arg),
        ("op", c_uint32),
        ("flags", c_uint32),
        ("ctx_id", c_uint32),
        ("num_of_elements", c_uint32),
    ]


class _hl_mem_block(Struct):
    _size_ = 16
    _fields_ = [
        ("block_handle", c_uint64),
        ("block_size", c_uint32),
        ("pad", c_uint32),
    ]


class _hl_mem_answer(Union):
    _size_ = 16
    _anonymous_ = ("_block",)
    _fields_ = [
        ("device_virt_addr", c_uint64),
        ("handle", c_uint64),
        ("_block", _hl_mem_block),
        ("fd", c_int32),
    ]


class hl_mem_out(Struct):
    """The member that belongs to the operation."""

    _size_ = 16
    _anonymous_ = ("_answer",)
    _fields_ = [
        ("_answer", _hl_mem_answer),
    ]


class hl_mem_args(Union):
    _size_ = 40
    _fields_ = [
        ("in", hl_mem_in),
        ("out", hl_mem_out),
    ]


HL_DEBUG_MAX_AUX_VALUES = 10


class hl_debug_params_etr(Struct):
    _size_ = 24
    _fields_ = [
        ("buffer_address", c_uint64),
        ("buffer_size", c_uint64),
        ("sink_mode", c_uint32),
        ("pad", c_uint32),
    ]


class hl_debug_params_etf(Struct):
    _size_ = 24
    _fields_ = [
        ("buffer_address", c_uint64),
        ("buffer_size", c_uint64),
        ("sink_mode", c_uint32),
        ("pad", c_uint32),
    ]


class hl_debug_params_stm(Struct):
    _size_ = 24
    _fields_ = [
        ("he_mask", c_uint64),
        ("sp_mask", c_uint64),
        ("id", c_uint32),
        ("frequency", c_uint32),
    ]


class hl_debug_params_bmon(Struct):
    _size_ = 80
    _fields_ = [
        ("start_addr0", c_uint64),
        ("addr_mask0", c_uint64),
        ("start_addr1", c_uint64),
        ("addr_mask1", c_uint64),
        ("bw_win", c_uint32),
        ("win_capture", c_uint32),
        ("id", c_uint32),
        ("control", c_uint32),
        ("start_addr2", c_uint64),
        ("end_addr2", c_uint64),
        ("start_addr3", c_uint64),
        ("end_addr3", c_uint64),
    ]


class hl_debug_params_spmu(Struct):
    _size_ = 96
    _fields_ = [
        ("event_types", c_uint64 * 10),
        ("event_types_num", c_uint32),
        ("pmtrc_val", c_uint32),
        ("trc_ctrl_host_val", c_uint32),
        ("trc_en_host_val", c_uint32),
    ]


# op of hl_debug_args
HL_DEBUG_OP_ETR = 0
HL_DEBUG_OP_ETF = 1
HL_DEBUG_OP_STM = 2
HL_DEBUG_OP_FUNNEL = 3
HL_DEBUG_OP_BMON = 4
HL_DEBUG_OP_SPMU = 5
HL_DEBUG_OP_TIMESTAMP = 6
HL_DEBUG_OP_SET_MODE = 7


class hl_debug_args(Struct):
    """``op`` is an HL_DEBUG_OP_*; the input is the hl_debug_params_* of that name."""

    _size_ = 40
    _fields_ = [
        ("input_ptr", c_uint64),
        ("output_ptr", c_uint64),
        ("input_size", c_uint32),
        ("output_size", c_uint32),
        ("op", c_uint32),
        ("reg_idx", c_uint32),
        ("enable", c_uint32),
        ("ctx_id", c_uint32),
    ]
    _pointers_ = {
        "input_ptr": Pointer(c_uint8, count="input_size"),
        "output_ptr": Pointer(c_uint8, count="output_size", direction="out"),
    }


HL_IOCTL_INFO = 0x00
HL_IOCTL_CB = 0x01
HL_IOCTL_CS = 0x02
HL_IOCTL_WAIT_CS = 0x03
HL_IOCTL_MEMORY = 0x04
HL_IOCTL_DEBUG = 0x05
HL_COMMAND_START = DRM_COMMAND_BASE + HL_IOCTL_INFO
HL_COMMAND_END = DRM_COMMAND_BASE + HL_IOCTL_DEBUG + 1


DRM_IOCTL_HL_INFO = Ioctl(
    "DRM_IOCTL_HL_INFO", DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_INFO, hl_info_args), hl_info_args
)
DRM_IOCTL_HL_CB = Ioctl(
    "DRM_IOCTL_HL_CB", DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_CB, hl_cb_args), hl_cb_args
)
DRM_IOCTL_HL_CS = Ioctl(
    "DRM_IOCTL_HL_CS", DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_CS, hl_cs_args), hl_cs_args
)
# The timeout counts from the call: one more would wait the whole time again.
DRM_IOCTL_HL_WAIT_CS = Ioctl(
    "DRM_IOCTL_HL_WAIT_CS",
    DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_WAIT_CS, hl_wait_cs_args),
    hl_wait_cs_args,
)
DRM_IOCTL_HL_MEMORY = Ioctl(
    "DRM_IOCTL_HL_MEMORY", DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_MEMORY, hl_mem_args), hl_mem_args
)
DRM_IOCTL_HL_DEBUG = Ioctl(
    "DRM_IOCTL_HL_DEBUG", DRM_IOWR(DRM_COMMAND_BASE + HL_IOCTL_DEBUG, hl_debug_args), hl_debug_args
)


class before_6_7(Variant):
    """Requests of a character device, type 'H', not of a DRM device."""

    UNTIL = (6, 7)

    class hl_info_time_sync(Struct):
        _size_ = 16
        _fields_ = [("device_time", c_uint64), ("host_time", c_uint64)]

    HL_IOCTL_INFO = Ioctl("HL_IOCTL_INFO", IOWR("H", 0x01, hl_info_args), hl_info_args)
    HL_IOCTL_CB = Ioctl("HL_IOCTL_CB", IOWR("H", 0x02, hl_cb_args), hl_cb_args)
    HL_IOCTL_CS = Ioctl("HL_IOCTL_CS", IOWR("H", 0x03, hl_cs_args), hl_cs_args)
    HL_IOCTL_WAIT_CS = Ioctl("HL_IOCTL_WAIT_CS", IOWR("H", 0x04, hl_wait_cs_args), hl_wait_cs_args)
    HL_IOCTL_MEMORY = Ioctl("HL_IOCTL_MEMORY", IOWR("H", 0x05, hl_mem_args), hl_mem_args)
    HL_IOCTL_DEBUG = Ioctl("HL_IOCTL_DEBUG", IOWR("H", 0x06, hl_debug_args), hl_debug_args)
    HL_COMMAND_START = 0x01
    HL_COMMAND_END = 0x07


class before_6_4(Variant):
    """Fewer facts about the chip, no command to engines other than cores."""

    UNTIL = (6, 4)

    class hl_info_hw_ip_info(Struct):
        _size_ = 280
        _fields_ = [
            ("sram_base_address", c_uint64),
            ("dram_base_address", c_uint64),
            ("dram_size", c_uint64),
            ("sram_size", c_uint32),
            ("num_of_events", c_uint32),
            ("device_id", c_uint32),
            ("module_id", c_uint32),
            ("decoder_enabled_mask", c_uint32),
            ("first_available_interrupt_id", c_uint16),
            ("server_type", c_uint16),
            ("cpld_version", c_uint32),
            ("psoc_pci_pll_nr", c_uint32),
            ("psoc_pci_pll_nf", c_uint32),
            ("psoc_pci_pll_od", c_uint32),
            ("psoc_pci_pll_div_factor", c_uint32),
            ("tpc_enabled_mask", c_uint8),
            ("dram_enabled", c_uint8),
            ("security_enabled", c_uint8),
            ("mme_master_slave_mode", c_uint8),
            ("cpucp_version", c_uint8 * HL_INFO_VERSION_MAX_LEN),
            ("card_name", c_uint8 * HL_INFO_CARD_NAME_MAX_LEN),
            ("tpc_enabled_mask_ext", c_uint64),
            ("dram_page_size", c_uint64),
            ("edma_enabled_mask", c_uint32),
            ("number_of_user_interrupts", c_uint16),
            ("pad2", c_uint16),
            ("reserved4", c_uint64),
            ("device_mem_alloc_default_page_size", c_uint64),
            ("reserved5", c_uint64),
            ("reserved6", c_uint64),
            ("reserved7", c_uint32),
            ("reserved8", c_uint8),
            ("revision_id", c_uint8),
            ("pad", c_uint8 * 2),
        ]

    class _hl_cs_work(Union):
        _size_ = 16
        _anonymous_ = ("_chunks", "_cores")
        _fields_ = [("_chunks", _hl_cs_chunks), ("_cores", _hl_cs_cores)]

    class hl_cs_in(Struct):
        _size_ = 48
        _anonymous_ = ("_work", "_signals")
        _pointers_ = hl_cs_in._pointers_

    class hl_cs_args(Union):
        _size_ = 48

    # The body of a class within a class does not see its siblings, so fields follow here.
    hl_cs_in._fields_ = [
        ("_work", _hl_cs_work),
        ("_signals", _hl_cs_signals),
        ("num_chunks_restore", c_uint32),
        ("num_chunks_execute", c_uint32),
        ("timeout", c_uint32),
        ("cs_flags", c_uint32),
        ("ctx_id", c_uint32),
        ("pad", c_uint8 * 4),
    ]
    hl_cs_args._fields_ = [("in", hl_cs_in), ("out", hl_cs_out)]

    HL_IOCTL_CS = Ioctl("HL_IOCTL_CS", IOWR("H", 0x03, hl_cs_args), hl_cs_args)


SINCE: dict[str, Version] = {
    "habanalabs": (6, 3),
    "HL_SERVER_GAUDI2_TYPE1": (6, 4),
    "HL_NOTIFIER_EVENT_CRITICL_HW_ERR": (6, 4),
    "HL_NOTIFIER_EVENT_CRITICL_FW_ERR": (6, 4),
    "HL_INFO_HW_ERR_EVENT": (6, 4),
    "HL_INFO_FW_ERR_EVENT": (6, 4),
    "hl_info_hw_err_event": (6, 4),
    "HL_INFO_FW_HEARTBEAT_ERR": (6, 4),
    "HL_INFO_FW_REPORTED_ERR": (6, 4),
    "hl_info_fw_err_event": (6, 4),
    "HL_CS_FLAGS_ENGINES_COMMAND": (6, 4),
    "HL_ENGINE_STALL": (6, 4),
    "HL_ENGINE_RESUME": (6, 4),
    "HL_ENGINE_COMMAND_MAX": (6, 4),
    "DRM_IOCTL_HL_INFO": (6, 7),
    "DRM_IOCTL_HL_CB": (6, 7),
    "DRM_IOCTL_HL_CS": (6, 7),
    "DRM_IOCTL_HL_WAIT_CS": (6, 7),
    "DRM_IOCTL_HL_MEMORY": (6, 7),
    "DRM_IOCTL_HL_DEBUG": (6, 7),
    "HL_INFO_USER_ENGINE_ERR_EVENT": (6, 7),
    "hl_info_engine_err_event": (6, 7),
    "HL_INFO_DEV_SIGNED": (6, 8),
    "SEC_DEV_INFO_BUF_SZ": (6, 8),
    "hl_info_signed": (6, 8),
}
VARIANTS: dict[str, type[Variant]] = {"before 6.7": before_6_7, "before 6.4": before_6_4}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
