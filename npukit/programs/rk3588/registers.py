# SPDX-License-Identifier: MIT
"""The register map of one RK3588 NPU core: every register, its offset and its bit fields.

Names, offsets and bit ranges are those of the RK3588 TRM's NPU chapter as Mesa's rocket driver
spells them. A bit that no field covers is reserved: the assembler cannot set it and the simulated
NPU refuses it. What real programs write but no manual describes has names that start with
``UNDOC_``: the top byte of CNA.CONV_CON2 (0x10, 0x20, 0x40 or 0x50 in the vendor's multi-core
variants), the upper half of PC.REGISTER_AMOUNTS (how many other cores the next task waits for), the
number of the core in the pointers of CNA and CORE, more bits of CNA.CBUF_CON1, the sign of an entry
of a lookup table, and the registers 0x3030 and 0x40c4 (always written as 0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

SIGNED = True


@dataclass(frozen=True, slots=True)
class Field:
    """Bits ``hi``..``lo`` of a register; ``signed`` ones also take two's complement values."""

    name: str
    hi: int
    lo: int
    signed: bool = False

    @property
    def width(self) -> int:
        return self.hi - self.lo + 1

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.lo

    @property
    def undocumented(self) -> bool:
        return self.name.startswith("UNDOC_")

    def get(self, value: int) -> int:
        """The field's part of a register's value; a signed field's may be negative."""
        raw = value >> self.lo & (2 << self.hi - self.lo) - 1
        return raw - (1 << self.width) if self.signed and raw >> (self.width - 1) else raw


class Register:
    """One 32-bit register: ``offset`` and ``fields`` (highest bits first).

    ``mask`` has all bits that some field covers; the others are reserved.
    """

    __slots__ = ("block", "fields", "mask", "name", "offset")

    def __init__(self, offset: int, **fields: tuple[int, int] | tuple[int, int, bool]) -> None:
        self.offset = offset
        self.fields = {name: Field(name, *bits) for name, bits in fields.items()}
        self.mask = sum(field.mask for field in self.fields.values())
        self.name = ""
        self.block: type[Block] = Block

    def __set_name__(self, owner: type[Block], name: str) -> None:
        self.block, self.name = owner, name

    @property
    def undocumented(self) -> bool:
        return self.name.startswith("UNDOC_")

    def __str__(self) -> str:
        return f"{self.block.__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<Register {self} at {self.offset:#06x}>"


class Block:
    """A group of registers. ``target`` is the number that command words carry to reach it, or 0."""

    base: ClassVar[int] = 0
    target: ClassVar[int] = 0

    def __init_subclass__(cls, base: int, target: int = 0) -> None:
        cls.base, cls.target = base, target

    @classmethod
    def registers(cls) -> Iterator[Register]:
        return (value for value in vars(cls).values() if isinstance(value, Register))


_INTERRUPTS = {
    "DMA_WRITE_ERROR": (13, 13),
    "DMA_READ_ERROR": (12, 12),
    "PPU_1": (11, 11),
    "PPU_0": (10, 10),
    "DPU_1": (9, 9),
    "DPU_0": (8, 8),
    "CORE_1": (7, 7),
    "CORE_0": (6, 6),
    "CNA_CSC_1": (5, 5),
    "CNA_CSC_0": (4, 4),
    "CNA_WEIGHT_1": (3, 3),
    "CNA_WEIGHT_0": (2, 2),
    "CNA_FEATURE_1": (1, 1),
    "CNA_FEATURE_0": (0, 0),
}

_POINTER = {
    "EXECUTER": (16, 16),
    "EXECUTER_PP_CLEAR": (5, 5),
    "POINTER_PP_CLEAR": (4, 4),
    "POINTER_PP_MODE": (3, 3),
    "EXECUTER_PP_EN": (2, 2),
    "POINTER_PP_EN": (1, 1),
    "POINTER": (0, 0),
}
# Of CNA and CORE: the vendor's driver and streams write the number of the core that runs them.
_CORE_POINTER = {"UNDOC_CORE": (31, 28), **_POINTER}


class PC(Block, base=0x0000, target=0x0101):
    """Program counter: fetches command words and starts the other blocks."""

    VERSION = Register(0x0000, VERSION=(31, 0))
    VERSION_NUM = Register(0x0004, VERSION_NUM=(31, 0))
    OPERATION_ENABLE = Register(0x0008, OP_EN=(0, 0))
    BASE_ADDRESS = Register(0x0010, PC_SOURCE_ADDR=(31, 4), PC_SEL=(0, 0))
    REGISTER_AMOUNTS = Register(0x0014, UNDOC_CORE_SYNC=(31, 16), PC_DATA_AMOUNT=(15, 0))
    INTERRUPT_MASK = Register(0x0020, **_INTERRUPTS)
    INTERRUPT_CLEAR = Register(0x0024, **_INTERRUPTS)
    INTERRUPT_STATUS = Register(0x0028, **_INTERRUPTS)
    INTERRUPT_RAW_STATUS = Register(0x002C, **_INTERRUPTS)
    TASK_CON = Register(0x0030, TASK_COUNT_CLEAR=(13, 13), TASK_PP_EN=(12, 12), TASK_NUMBER=(11, 0))
    TASK_DMA_BASE_ADDR = Register(0x0034, DMA_BASE_ADDR=(31, 4))
    TASK_STATUS = Register(0x003C, TASK_STATUS=(27, 0))


class CNA(Block, base=0x1000, target=0x0201):
    """Convolution front end: feature and weight DMA, CBUF, input conversion."""

    S_STATUS = Register(0x1000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    S_POINTER = Register(0x1004, **_CORE_POINTER)
    OPERATION_ENABLE = Register(0x1008, OP_EN=(0, 0))
    CONV_CON1 = Register(
        0x100C,
        NONALIGN_DMA=(30, 30),
        GROUP_LINE_OFF=(29, 29),
        DECONV=(16, 16),
        ARGB_IN=(15, 12),
        PROC_PRECISION=(9, 7),
        IN_PRECISION=(6, 4),
        CONV_MODE=(3, 0),
    )
    CONV_CON2 = Register(
        0x1010,
        UNDOC_CORE_VARIANT=(31, 24),
        KERNEL_GROUP=(23, 16),
        FEATURE_GRAINS=(13, 4),
        CSC_WO_EN=(2, 2),
        CSC_DO_EN=(1, 1),
        CMD_FIFO_SRST=(0, 0),
    )
    CONV_CON3 = Register(
        0x1014,
        NN_MODE=(30, 28),
        ATROUS_Y_DILATION=(25, 21),
        ATROUS_X_DILATION=(20, 16),
        DECONV_Y_STRIDE=(13, 11),
        DECONV_X_STRIDE=(10, 8),
        CONV_Y_STRIDE=(5, 3),
        CONV_X_STRIDE=(2, 0),
    )
    DATA_SIZE0 = Register(0x1020, DATAIN_WIDTH=(26, 16), DATAIN_HEIGHT=(10, 0))
    DATA_SIZE1 = Register(0x1024, DATAIN_CHANNEL_REAL=(29, 16), DATAIN_CHANNEL=(15, 0))
    DATA_SIZE2 = Register(0x1028, DATAOUT_WIDTH=(10, 0))
    DATA_SIZE3 = Register(0x102C, SURF_MODE=(23, 22), DATAOUT_ATOMICS=(21, 0))
    WEIGHT_SIZE0 = Register(0x1030, WEIGHT_BYTES=(31, 0))
    WEIGHT_SIZE1 = Register(0x1034, WEIGHT_BYTES_PER_KERNEL=(18, 0))
    WEIGHT_SIZE2 = Register(
        0x1038, WEIGHT_WIDTH=(28, 24), WEIGHT_HEIGHT=(20, 16), WEIGHT_KERNELS=(13, 0)
    )
    CBUF_CON0 = Register(
        0x1040,
        WEIGHT_REUSE=(13, 13),
        DATA_REUSE=(12, 12),
        FC_DATA_BANK=(10, 8),
        WEIGHT_BANK=(7, 4),
        DATA_BANK=(3, 0),
    )
    # The pixels of a channel-last input, which are counted here, take more than the manual's 14
    # bits: the vendor's compiler sets bit 14, and all 11 banks hold 90,112 pixels of one channel.
    CBUF_CON1 = Register(0x1044, UNDOC_MORE_ENTRIES=(16, 14), DATA_ENTRIES=(13, 0))
    CVT_CON0 = Register(
        0x104C,
        CVT_TRUNCATE_3=(27, 22),
        CVT_TRUNCATE_2=(21, 16),
        CVT_TRUNCATE_1=(15, 10),
        CVT_TRUNCATE_0=(9, 4),
        DATA_SIGN=(3, 3),
        ROUND_TYPE=(2, 2),
        CVT_TYPE=(1, 1),
        CVT_BYPASS=(0, 0),
    )
    CVT_CON1 = Register(0x1050, CVT_SCALE0=(31, 16), CVT_OFFSET0=(15, 0, SIGNED))
    CVT_CON2 = Register(0x1054, CVT_SCALE1=(31, 16), CVT_OFFSET1=(15, 0, SIGNED))
    CVT_CON3 = Register(0x1058, CVT_SCALE2=(31, 16), CVT_OFFSET2=(15, 0, SIGNED))
    CVT_CON4 = Register(0x105C, CVT_SCALE3=(31, 16), CVT_OFFSET3=(15, 0, SIGNED))
    FC_CON0 = Register(0x1060, FC_SKIP_DATA=(31, 16), FC_SKIP_EN=(0, 0))
    FC_CON1 = Register(0x1064, DATA_OFFSET=(16, 0))
    PAD_CON0 = Register(0x1068, PAD_LEFT=(7, 4), PAD_TOP=(3, 0))
    FEATURE_DATA_ADDR = Register(0x1070, FEATURE_BASE_ADDR=(31, 0))
    FC_CON2 = Register(0x1074, WEIGHT_OFFSET=(16, 0))
    DMA_CON0 = Register(
        0x1078, OV4K_BYPASS=(31, 31), WEIGHT_BURST_LEN=(19, 16), DATA_BURST_LEN=(3, 0)
    )
    DMA_CON1 = Register(0x107C, LINE_STRIDE=(27, 0))
    DMA_CON2 = Register(0x1080, SURF_STRIDE=(27, 0, SIGNED))
    FC_DATA_SIZE0 = Register(0x1084, DMA_WIDTH=(29, 16), DMA_HEIGHT=(10, 0))
    FC_DATA_SIZE1 = Register(0x1088, DMA_CHANNEL=(15, 0))
    CLK_GATE = Register(
        0x1090,
        CBUF_CS_DISABLE_CLKGATE=(4, 4),
        CSC_DISABLE_CLKGATE=(2, 2),
        CNA_WEIGHT_DISABLE_CLKGATE=(1, 1),
        CNA_FEATURE_DISABLE_CLKGATE=(0, 0),
    )
    DCOMP_CTRL = Register(0x1100, WT_DEC_BYPASS=(3, 3), DECOMP_CONTROL=(2, 0))
    DCOMP_REGNUM = Register(0x1104, DCOMP_REGNUM=(31, 0))
    DCOMP_ADDR0 = Register(0x1110, DECOMPRESS_ADDR0=(31, 0))
    DCOMP_AMOUNT0 = Register(0x1140, DCOMP_AMOUNT0=(31, 0))
    DCOMP_AMOUNT1 = Register(0x1144, DCOMP_AMOUNT1=(31, 0))
    DCOMP_AMOUNT2 = Register(0x1148, DCOMP_AMOUNT2=(31, 0))
    DCOMP_AMOUNT3 = Register(0x114C, DCOMP_AMOUNT3=(31, 0))
    DCOMP_AMOUNT4 = Register(0x1150, DCOMP_AMOUNT4=(31, 0))
    DCOMP_AMOUNT5 = Register(0x1154, DCOMP_AMOUNT5=(31, 0))
    DCOMP_AMOUNT6 = Register(0x1158, DCOMP_AMOUNT6=(31, 0))
    DCOMP_AMOUNT7 = Register(0x115C, DCOMP_AMOUNT7=(31, 0))
    DCOMP_AMOUNT8 = Register(0x1160, DCOMP_AMOUNT8=(31, 0))
    DCOMP_AMOUNT9 = Register(0x1164, DCOMP_AMOUNT9=(31, 0))
    DCOMP_AMOUNT10 = Register(0x1168, DCOMP_AMOUNT10=(31, 0))
    DCOMP_AMOUNT11 = Register(0x116C, DCOMP_AMOUNT11=(31, 0))
    DCOMP_AMOUNT12 = Register(0x1170, DCOMP_AMOUNT12=(31, 0))
    DCOMP_AMOUNT13 = Register(0x1174, DCOMP_AMOUNT13=(31, 0))
    DCOMP_AMOUNT14 = Register(0x1178, DCOMP_AMOUNT14=(31, 0))
    DCOMP_AMOUNT15 = Register(0x117C, DCOMP_AMOUNT15=(31, 0))
    CVT_CON5 = Register(0x1180, PER_CHANNEL_CVT_EN=(31, 0))
    PAD_CON1 = Register(0x1184, PAD_VALUE=(31, 0, SIGNED))


class CORE(Block, base=0x3000, target=0x0801):
    """Multiply-accumulate array."""

    S_STATUS = Register(0x3000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    S_POINTER = Register(0x3004, **_CORE_POINTER)
    OPERATION_ENABLE = Register(0x3008, OP_EN=(0, 0))
    MAC_GATING = Register(0x300C, SLCG_OP_EN=(26, 0))
    MISC_CFG = Register(
        0x3010, SOFT_GATING=(19, 14), PROC_PRECISION=(10, 8), DW_EN=(1, 1), QD_EN=(0, 0)
    )
    DATAOUT_SIZE_0 = Register(0x3014, DATAOUT_HEIGHT=(31, 16), DATAOUT_WIDTH=(15, 0))
    DATAOUT_SIZE_1 = Register(0x3018, DATAOUT_CHANNEL=(15, 0))
    CLIP_TRUNCATE = Register(0x301C, ROUND_TYPE=(6, 6), CLIP_TRUNCATE=(4, 0))
    UNDOC_3030 = Register(0x3030, VALUE=(31, 0))


class DPU(Block, base=0x4000, target=0x1001):
    """Data processing unit: per-channel and elementwise stages, output DMA."""

    S_STATUS = Register(0x4000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    S_POINTER = Register(0x4004, **_POINTER)
    OPERATION_ENABLE = Register(0x4008, OP_EN=(0, 0))
    FEATURE_MODE_CFG = Register(
        0x400C,
        COMB_USE=(31, 31),
        TP_EN=(30, 30),
        RGP_TYPE=(29, 26),
        NONALIGN=(25, 25),
        SURF_LEN=(24, 9),
        BURST_LEN=(8, 5),
        CONV_MODE=(4, 3),
        OUTPUT_MODE=(2, 1),
        FLYING_MODE=(0, 0),
    )
    DATA_FORMAT = Register(
        0x4010,
        OUT_PRECISION=(31, 29),
        IN_PRECISION=(28, 26),
        EW_TRUNCATE_NEG=(25, 16),
        BN_MUL_SHIFT_VALUE_NEG=(15, 10),
        BS_MUL_SHIFT_VALUE_NEG=(9, 4),
        MC_SURF_OUT=(3, 3),
        PROC_PRECISION=(2, 0),
    )
    OFFSET_PEND = Register(0x4014, OFFSET_PEND=(15, 0))
    DST_BASE_ADDR = Register(0x4020, DST_BASE_ADDR=(31, 0))
    DST_SURF_STRIDE = Register(0x4024, DST_SURF_STRIDE=(31, 4))
    DATA_CUBE_WIDTH = Register(0x4030, WIDTH=(12, 0))
    DATA_CUBE_HEIGHT = Register(0x4034, MINMAX_CTL=(24, 22), HEIGHT=(12, 0))
    DATA_CUBE_NOTCH_ADDR = Register(0x4038, NOTCH_ADDR_1=(28, 16), NOTCH_ADDR_0=(12, 0))
    DATA_CUBE_CHANNEL = Register(0x403C, ORIG_CHANNEL=(28, 16), CHANNEL=(12, 0))
    BS_CFG = Register(
        0x4040,
        BS_ALU_ALGO=(19, 16),
        BS_ALU_SRC=(8, 8),
        BS_RELUX_EN=(7, 7),
        BS_RELU_BYPASS=(6, 6),
        BS_MUL_PRELU=(5, 5),
        BS_MUL_BYPASS=(4, 4),
        BS_ALU_BYPASS=(1, 1),
        BS_BYPASS=(0, 0),
    )
    BS_ALU_CFG = Register(0x4044, BS_ALU_OPERAND=(31, 0, SIGNED))
    BS_MUL_CFG = Register(
        0x4048,
        BS_MUL_OPERAND=(31, 16, SIGNED),
        BS_MUL_SHIFT_VALUE=(13, 8),
        BS_TRUNCATE_SRC=(1, 1),
        BS_MUL_SRC=(0, 0),
    )
    BS_RELUX_CMP_VALUE = Register(0x404C, BS_RELUX_CMP_DAT=(31, 0, SIGNED))
    BS_OW_CFG = Register(
        0x4050,
        RGP_CNTER=(31, 28),
        TP_ORG_EN=(27, 27),
        SIZE_E_2=(10, 8),
        SIZE_E_1=(7, 5),
        SIZE_E_0=(4, 2),
        OD_BYPASS=(1, 1),
        OW_SRC=(0, 0),
    )
    BS_OW_OP = Register(0x4054, OW_OP=(15, 0, SIGNED))
    WDMA_SIZE_0 = Register(
        0x4058, TP_PRECISION=(27, 27), SIZE_C_WDMA=(26, 16), CHANNEL_WDMA=(12, 0)
    )
    WDMA_SIZE_1 = Register(0x405C, HEIGHT_WDMA=(28, 16), WIDTH_WDMA=(12, 0))
    BN_CFG = Register(
        0x4060,
        BN_ALU_ALGO=(19, 16),
        BN_ALU_SRC=(8, 8),
        BN_RELUX_EN=(7, 7),
        BN_RELU_BYPASS=(6, 6),
        BN_MUL_PRELU=(5, 5),
        BN_MUL_BYPASS=(4, 4),
        BN_ALU_BYPASS=(1, 1),
        BN_BYPASS=(0, 0),
    )
    BN_ALU_CFG = Register(0x4064, BN_ALU_OPERAND=(31, 0, SIGNED))
    BN_MUL_CFG = Register(
        0x4068,
        BN_MUL_OPERAND=(31, 16, SIGNED),
        BN_MUL_SHIFT_VALUE=(13, 8),
        BN_TRUNCATE_SRC=(1, 1),
        BN_MUL_SRC=(0, 0),
    )
    BN_RELUX_CMP_VALUE = Register(0x406C, BN_RELUX_CMP_DAT=(31, 0, SIGNED))
    EW_CFG = Register(
        0x4070,
        EW_CVT_TYPE=(31, 31),
        EW_CVT_ROUND=(30, 30),
        EW_DATA_MODE=(29, 28),
        EDATA_SIZE=(23, 22),
        EW_EQUAL_EN=(21, 21),
        EW_BINARY_EN=(20, 20),
        EW_ALU_ALGO=(19, 16),
        EW_RELUX_EN=(10, 10),
        EW_RELU_BYPASS=(9, 9),
        EW_OP_CVT_BYPASS=(8, 8),
        EW_LUT_BYPASS=(7, 7),
        EW_OP_SRC=(6, 6),
        EW_MUL_PRELU=(5, 5),
        EW_OP_TYPE=(2, 2),
        EW_OP_BYPASS=(1, 1),
        EW_BYPASS=(0, 0),
    )
    EW_CVT_OFFSET_VALUE = Register(0x4074, EW_OP_CVT_OFFSET=(31, 0, SIGNED))
    EW_CVT_SCALE_VALUE = Register(
        0x4078, EW_TRUNCATE=(31, 22), EW_OP_CVT_SHIFT=(21, 16), EW_OP_CVT_SCALE=(15, 0)
    )
    EW_RELUX_CMP_VALUE = Register(0x407C, EW_RELUX_CMP_DAT=(31, 0, SIGNED))
    OUT_CVT_OFFSET = Register(0x4080, OUT_CVT_OFFSET=(31, 0, SIGNED))
    OUT_CVT_SCALE = Register(0x4084, FP32TOFP16_EN=(16, 16), OUT_CVT_SCALE=(15, 0))
    OUT_CVT_SHIFT = Register(
        0x4088, CVT_TYPE=(31, 31), CVT_ROUND=(30, 30), MINUS_EXP=(19, 12), OUT_CVT_SHIFT=(11, 0)
    )
    EW_OP_VALUE_0 = Register(0x4090, EW_OPERAND_0=(31, 0, SIGNED))
    EW_OP_VALUE_1 = Register(0x4094, EW_OPERAND_1=(31, 0, SIGNED))
    EW_OP_VALUE_2 = Register(0x4098, EW_OPERAND_2=(31, 0, SIGNED))
    EW_OP_VALUE_3 = Register(0x409C, EW_OPERAND_3=(31, 0, SIGNED))
    EW_OP_VALUE_4 = Register(0x40A0, EW_OPERAND_4=(31, 0, SIGNED))
    EW_OP_VALUE_5 = Register(0x40A4, EW_OPERAND_5=(31, 0, SIGNED))
    EW_OP_VALUE_6 = Register(0x40A8, EW_OPERAND_6=(31, 0, SIGNED))
    EW_OP_VALUE_7 = Register(0x40AC, EW_OPERAND_7=(31, 0, SIGNED))
    SURFACE_ADD = Register(0x40C0, SURF_ADD=(31, 4))
    UNDOC_40C4 = Register(0x40C4, VALUE=(31, 0))
    LUT_ACCESS_CFG = Register(
        0x4100, LUT_ACCESS_TYPE=(17, 17), LUT_TABLE_ID=(16, 16), LUT_ADDR=(9, 0)
    )
    # The vendor's compiler writes the sign of a negative entry on.
    LUT_ACCESS_DATA = Register(0x4104, UNDOC_SIGN=(31, 16), LUT_ACCESS_DATA=(15, 0, SIGNED))
    LUT_CFG = Register(
        0x4108,
        LUT_CAL_SEL=(7, 7),
        LUT_HYBRID_PRIORITY=(6, 6),
        LUT_OFLOW_PRIORITY=(5, 5),
        LUT_UFLOW_PRIORITY=(4, 4),
        LUT_LO_LE_MUX=(3, 2),
        LUT_EXPAND_EN=(1, 1),
        LUT_ROAD_SEL=(0, 0),
    )
    LUT_INFO = Register(0x410C, LUT_LO_INDEX_SELECT=(23, 16), LUT_LE_INDEX_SELECT=(15, 8))
    LUT_LE_START = Register(0x4110, LUT_LE_START=(31, 0, SIGNED))
    LUT_LE_END = Register(0x4114, LUT_LE_END=(31, 0, SIGNED))
    LUT_LO_START = Register(0x4118, LUT_LO_START=(31, 0, SIGNED))
    LUT_LO_END = Register(0x411C, LUT_LO_END=(31, 0, SIGNED))
    LUT_LE_SLOPE_SCALE = Register(
        0x4120, LUT_LE_SLOPE_OFLOW_SCALE=(31, 16), LUT_LE_SLOPE_UFLOW_SCALE=(15, 0)
    )
    LUT_LE_SLOPE_SHIFT = Register(
        0x4124, LUT_LE_SLOPE_OFLOW_SHIFT=(9, 5), LUT_LE_SLOPE_UFLOW_SHIFT=(4, 0)
    )
    LUT_LO_SLOPE_SCALE = Register(
        0x4128, LUT_LO_SLOPE_OFLOW_SCALE=(31, 16), LUT_LO_SLOPE_UFLOW_SCALE=(15, 0)
    )
    LUT_LO_SLOPE_SHIFT = Register(
        0x412C, LUT_LO_SLOPE_OFLOW_SHIFT=(9, 5), LUT_LO_SLOPE_UFLOW_SHIFT=(4, 0)
    )


class DPU_RDMA(Block, base=0x5000, target=0x2001):
    """Operand DMA of the DPU (main, bias, batch norm, elementwise)."""

    RDMA_S_STATUS = Register(0x5000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    RDMA_S_POINTER = Register(0x5004, **_POINTER)
    RDMA_OPERATION_ENABLE = Register(0x5008, OP_EN=(0, 0))
    RDMA_DATA_CUBE_WIDTH = Register(0x500C, WIDTH=(12, 0))
    RDMA_DATA_CUBE_HEIGHT = Register(0x5010, EW_LINE_NOTCH_ADDR=(28, 16), HEIGHT=(12, 0))
    RDMA_DATA_CUBE_CHANNEL = Register(0x5014, CHANNEL=(12, 0))
    RDMA_SRC_BASE_ADDR = Register(0x5018, SRC_BASE_ADDR=(31, 0))
    RDMA_BRDMA_CFG = Register(0x501C, BRDMA_DATA_USE=(4, 1))
    RDMA_BS_BASE_ADDR = Register(0x5020, BS_BASE_ADDR=(31, 0))
    RDMA_NRDMA_CFG = Register(0x5028, NRDMA_DATA_USE=(4, 1))
    RDMA_BN_BASE_ADDR = Register(0x502C, BN_BASE_ADDR=(31, 0))
    RDMA_ERDMA_CFG = Register(
        0x5034,
        ERDMA_DATA_MODE=(31, 30),
        ERDMA_SURF_MODE=(29, 29),
        ERDMA_NONALIGN=(28, 28),
        ERDMA_DATA_SIZE=(3, 2),
        OV4K_BYPASS=(1, 1),
        ERDMA_DISABLE=(0, 0),
    )
    RDMA_EW_BASE_ADDR = Register(0x5038, EW_BASE_ADDR=(31, 0))
    RDMA_EW_SURF_STRIDE = Register(0x5040, EW_SURF_STRIDE=(31, 4))
    RDMA_FEATURE_MODE_CFG = Register(
        0x5044,
        IN_PRECISION=(17, 15),
        BURST_LEN=(14, 11),
        COMB_USE=(10, 8),
        PROC_PRECISION=(7, 5),
        MRDMA_DISABLE=(4, 4),
        MRDMA_FP16TOFP32_EN=(3, 3),
        CONV_MODE=(2, 1),
        FLYING_MODE=(0, 0),
    )
    RDMA_SRC_DMA_CFG = Register(
        0x5048,
        LINE_NOTCH_ADDR=(31, 19),
        POOLING_METHOD=(13, 13),
        UNPOOLING_EN=(12, 12),
        KERNEL_STRIDE_HEIGHT=(11, 9),
        KERNEL_STRIDE_WIDTH=(8, 6),
        KERNEL_HEIGHT=(5, 3),
        KERNEL_WIDTH=(2, 0),
    )
    RDMA_SURF_NOTCH = Register(0x504C, SURF_NOTCH_ADDR=(31, 4))
    RDMA_PAD_CFG = Register(0x5064, PAD_VALUE=(31, 16), PAD_TOP=(6, 4), PAD_LEFT=(2, 0))
    RDMA_WEIGHT = Register(
        0x5068, E_WEIGHT=(31, 24), N_WEIGHT=(23, 16), B_WEIGHT=(15, 8), M_WEIGHT=(7, 0)
    )
    RDMA_EW_SURF_NOTCH = Register(0x506C, EW_SURF_NOTCH=(31, 4))


class PPU(Block, base=0x6000, target=0x4001):
    """Pooling unit."""

    S_STATUS = Register(0x6000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    S_POINTER = Register(0x6004, **_POINTER)
    OPERATION_ENABLE = Register(0x6008, OP_EN=(0, 0))
    DATA_CUBE_IN_WIDTH = Register(0x600C, CUBE_IN_WIDTH=(12, 0))
    DATA_CUBE_IN_HEIGHT = Register(0x6010, CUBE_IN_HEIGHT=(12, 0))
    DATA_CUBE_IN_CHANNEL = Register(0x6014, CUBE_IN_CHANNEL=(12, 0))
    DATA_CUBE_OUT_WIDTH = Register(0x6018, CUBE_OUT_WIDTH=(12, 0))
    DATA_CUBE_OUT_HEIGHT = Register(0x601C, CUBE_OUT_HEIGHT=(12, 0))
    DATA_CUBE_OUT_CHANNEL = Register(0x6020, CUBE_OUT_CHANNEL=(12, 0))
    OPERATION_MODE_CFG = Register(
        0x6024,
        INDEX_EN=(30, 30),
        NOTCH_ADDR=(28, 16),
        USE_CNT=(7, 5),
        FLYING_MODE=(4, 4),
        POOLING_METHOD=(1, 0),
    )
    POOLING_KERNEL_CFG = Register(
        0x6034,
        KERNEL_STRIDE_HEIGHT=(23, 20),
        KERNEL_STRIDE_WIDTH=(19, 16),
        KERNEL_HEIGHT=(11, 8),
        KERNEL_WIDTH=(3, 0),
    )
    RECIP_KERNEL_WIDTH = Register(0x6038, RECIP_KERNEL_WIDTH=(16, 0))
    RECIP_KERNEL_HEIGHT = Register(0x603C, RECIP_KERNEL_HEIGHT=(16, 0))
    POOLING_PADDING_CFG = Register(
        0x6040, PAD_BOTTOM=(14, 12), PAD_RIGHT=(10, 8), PAD_TOP=(6, 4), PAD_LEFT=(2, 0)
    )
    PADDING_VALUE_1_CFG = Register(0x6044, PAD_VALUE_0=(31, 0))
    PADDING_VALUE_2_CFG = Register(0x6048, PAD_VALUE_1=(2, 0))
    DST_BASE_ADDR = Register(0x6070, DST_BASE_ADDR=(31, 4))
    DST_SURF_STRIDE = Register(0x607C, DST_SURF_STRIDE=(31, 4))
    DATA_FORMAT = Register(0x6084, INDEX_ADD=(31, 4), DPU_FLYIN=(3, 3), PROC_PRECISION=(2, 0))
    MISC_CTRL = Register(
        0x60DC, SURF_LEN=(31, 16), MC_SURF_OUT=(8, 8), NONALIGN=(7, 7), BURST_LEN=(3, 0)
    )


class PPU_RDMA(Block, base=0x7000, target=0x8001):
    """Input DMA of the pooling unit."""

    RDMA_S_STATUS = Register(0x7000, STATUS_1=(17, 16), STATUS_0=(1, 0))
    RDMA_S_POINTER = Register(0x7004, **_POINTER)
    RDMA_OPERATION_ENABLE = Register(0x7008, OP_EN=(0, 0))
    RDMA_CUBE_IN_WIDTH = Register(0x700C, CUBE_IN_WIDTH=(12, 0))
    RDMA_CUBE_IN_HEIGHT = Register(0x7010, CUBE_IN_HEIGHT=(12, 0))
    RDMA_CUBE_IN_CHANNEL = Register(0x7014, CUBE_IN_CHANNEL=(12, 0))
    RDMA_SRC_BASE_ADDR = Register(0x701C, SRC_BASE_ADDR=(31, 0))
    RDMA_SRC_LINE_STRIDE = Register(0x7024, SRC_LINE_STRIDE=(31, 4))
    RDMA_SRC_SURF_STRIDE = Register(0x7028, SRC_SURF_STRIDE=(31, 4))
    RDMA_DATA_FORMAT = Register(0x7030, IN_PRECISION=(1, 0))


class DDMA(Block, base=0x8000):
    """DRAM DMA arbiter."""

    CFG_OUTSTANDING = Register(0x8000, WR_OS_CNT=(15, 8), RD_OS_CNT=(7, 0))
    RD_WEIGHT_0 = Register(
        0x8004,
        RD_WEIGHT_PDP=(31, 24),
        RD_WEIGHT_DPU=(23, 16),
        RD_WEIGHT_KERNEL=(15, 8),
        RD_WEIGHT_FEATURE=(7, 0),
    )
    WR_WEIGHT_0 = Register(0x8008, WR_WEIGHT_PDP=(15, 8), WR_WEIGHT_DPU=(7, 0))
    CFG_ID_ERROR = Register(0x800C, WR_RESP_ID=(9, 6), RD_RESP_ID=(4, 0))
    RD_WEIGHT_1 = Register(0x8010, RD_WEIGHT_PC=(7, 0))
    CFG_DMA_FIFO_CLR = Register(0x8014, DMA_FIFO_CLR=(0, 0))
    CFG_DMA_ARB = Register(
        0x8018, WR_ARBIT_MODEL=(9, 9), RD_ARBIT_MODEL=(8, 8), WR_FIX_ARB=(6, 4), RD_FIX_ARB=(2, 0)
    )
    CFG_DMA_RD_QOS = Register(
        0x8020,
        RD_PC_QOS=(9, 8),
        RD_PPU_QOS=(7, 6),
        RD_DPU_QOS=(5, 4),
        RD_KERNEL_QOS=(3, 2),
        RD_FEATURE_QOS=(1, 0),
    )
    CFG_DMA_RD_CFG = Register(
        0x8024,
        RD_ARLOCK=(12, 12),
        RD_ARCACHE=(11, 8),
        RD_ARPROT=(7, 5),
        RD_ARBURST=(4, 3),
        RD_ARSIZE=(2, 0),
    )
    CFG_DMA_WR_CFG = Register(
        0x8028,
        WR_AWLOCK=(12, 12),
        WR_AWCACHE=(11, 8),
        WR_AWPROT=(7, 5),
        WR_AWBURST=(4, 3),
        WR_AWSIZE=(2, 0),
    )
    CFG_DMA_WSTRB = Register(0x802C, WR_WSTRB=(31, 0))
    CFG_STATUS = Register(0x8030, IDEL=(8, 8))


class SDMA(Block, base=0x9000):
    """SRAM DMA arbiter."""

    CFG_OUTSTANDING = Register(0x9000, WR_OS_CNT=(15, 8), RD_OS_CNT=(7, 0))
    RD_WEIGHT_0 = Register(
        0x9004,
        RD_WEIGHT_PDP=(31, 24),
        RD_WEIGHT_DPU=(23, 16),
        RD_WEIGHT_KERNEL=(15, 8),
        RD_WEIGHT_FEATURE=(7, 0),
    )
    WR_WEIGHT_0 = Register(0x9008, WR_WEIGHT_PDP=(15, 8), WR_WEIGHT_DPU=(7, 0))
    CFG_ID_ERROR = Register(0x900C, WR_RESP_ID=(9, 6), RD_RESP_ID=(4, 0))
    RD_WEIGHT_1 = Register(0x9010, RD_WEIGHT_PC=(7, 0))
    CFG_DMA_FIFO_CLR = Register(0x9014, DMA_FIFO_CLR=(0, 0))
    CFG_DMA_ARB = Register(
        0x9018, WR_ARBIT_MODEL=(9, 9), RD_ARBIT_MODEL=(8, 8), WR_FIX_ARB=(6, 4), RD_FIX_ARB=(2, 0)
    )
    CFG_DMA_RD_QOS = Register(
        0x9020,
        RD_PC_QOS=(9, 8),
        RD_PPU_QOS=(7, 6),
        RD_DPU_QOS=(5, 4),
        RD_KERNEL_QOS=(3, 2),
        RD_FEATURE_QOS=(1, 0),
    )
    CFG_DMA_RD_CFG = Register(
        0x9024,
        RD_ARLOCK=(12, 12),
        RD_ARCACHE=(11, 8),
        RD_ARPROT=(7, 5),
        RD_ARBURST=(4, 3),
        RD_ARSIZE=(2, 0),
    )
    CFG_DMA_WR_CFG = Register(
        0x9028,
        WR_AWLOCK=(12, 12),
        WR_AWCACHE=(11, 8),
        WR_AWPROT=(7, 5),
        WR_AWBURST=(4, 3),
        WR_AWSIZE=(2, 0),
    )
    CFG_DMA_WSTRB = Register(0x902C, WR_WSTRB=(31, 0))
    CFG_STATUS = Register(0x9030, IDEL=(8, 8))


class GLOBAL(Block, base=0xF000):
    """Block enables."""

    OPERATION_ENABLE = Register(
        0xF008,
        PPU_RDMA_OP_EN=(6, 6),
        PPU_OP_EN=(5, 5),
        DPU_RDMA_OP_EN=(4, 4),
        DPU_OP_EN=(3, 3),
        CORE_OP_EN=(2, 2),
        CNA_OP_EN=(0, 0),
    )


BLOCKS: tuple[type[Block], ...] = (
    PC,
    CNA,
    CORE,
    DPU,
    DPU_RDMA,
    PPU,
    PPU_RDMA,
    DDMA,
    SDMA,
    GLOBAL,
)
"""All blocks, by base address."""

REGISTERS: dict[int, Register] = {
    register.offset: register for block in BLOCKS for register in block.registers()
}
"""Every register by its offset, which is unique over all blocks."""

ENABLE_TARGET = 0x0081
"""Target of the last word of a task: PC register 0x0008, value = the blocks to start."""

MARKER_TARGET = 0x0041
"""Target of the empty word that must precede the enable word."""

ENABLE_BITS = {"CNA": 0, "CORE": 2, "DPU": 3, "DPU_RDMA": 4, "PPU": 5, "PPU_RDMA": 6}
"""Block name -> bit of the enable value (bit i stands for target bit 57 + i)."""


def find(name: str) -> Register:
    """The register called ``BLOCK.NAME``; KeyError when there is none."""
    block_name, _, register_name = name.partition(".")
    for block in BLOCKS:
        if block.__name__ == block_name:
            register = vars(block).get(register_name)
            if isinstance(register, Register):
                return register
    raise KeyError(name)
